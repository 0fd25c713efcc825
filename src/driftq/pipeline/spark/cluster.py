"""A real standalone Spark cluster on this machine, from the PySpark wheel: for experiments and for the tests.

One master and several workers, each a JVM that outlives the process that started it. Their addresses and process ids
are in `cluster.json` in the cluster's directory; `down` ends exactly these processes. Workers start executors through
Spark's own scripts.
"""

import json
import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.spark.java import Java, cache_dir, find_java, home_for_spark
from driftq.pipeline.spark.jvm import daemon_command, spark_home

PATIENCE_S = 180.0
_POLL_S = 0.1
_STATE = "cluster.json"
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


class Cluster(NamedTuple):
    """A standalone cluster that is running."""

    master: str
    """The URL to pass as `master=`."""
    workers: int
    web: str
    pids: tuple[int, ...]
    directory: str


def directory_or_default(directory: str | Path | None) -> Path:
    """Return the directory of a cluster, for its logs and the work of its executors."""
    return cache_dir() / "cluster" if directory is None else Path(directory)


def find(directory: str | Path | None = None) -> Cluster | None:
    """Return the running cluster of a directory, or None if it is not running."""
    try:
        said = json.loads((directory_or_default(directory) / _STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    known = Cluster(said["master"], said["workers"], said["web"], tuple(said["pids"]), said["directory"])
    return known if any(map(_is_ours, known.pids)) else None


def up(workers: int = 2, *, cores: int = 1, memory: str = "1536m", directory: str | Path | None = None) -> Cluster:
    """Start a master and workers on loopback, and wait until the workers are registered. Raises PipelineError."""
    place = directory_or_default(directory)
    running = find(place)
    if running is not None:
        raise PipelineError(f"a cluster is already running at {running.master}: use it, or stop it first")
    place.mkdir(parents=True, exist_ok=True)
    java = find_java()
    port, web = _free_port(), _free_port()
    master, page = f"spark://127.0.0.1:{port}", f"http://127.0.0.1:{web}"
    pids: list[int] = []
    try:
        where = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web))
        pids.append(_start(java, place, "master", _MASTER, *where))
        _wait(pids, lambda: _alive(page) is not None, place, "the master")
        for number in range(workers):
            size = ("--webui-port", "0", "-c", str(cores), "-m", memory, "-d", str(place / "work"))
            pids.append(_start(java, place, f"worker-{number}", _WORKER, "--host", "127.0.0.1", *size, master))
        _wait(pids, lambda: _alive(page) == workers, place, "the workers")
    except BaseException:
        _end(pids)
        raise
    made = Cluster(master, workers, page, tuple(pids), str(place))
    (place / _STATE).write_text(json.dumps(made._asdict()), encoding="utf-8")
    return made


def down(directory: str | Path | None = None) -> bool:
    """End the cluster of a directory. Returns whether there was one."""
    known = find(directory)
    if known is not None:
        _end(known.pids)
    (directory_or_default(directory) / _STATE).unlink(missing_ok=True)
    return known is not None


def _start(java: Java, place: Path, name: str, *arguments: str) -> int:
    """Start one JVM in a session of its own, with a log file, and return its process id."""
    variables = {
        "SPARK_HOME": str(spark_home()),
        "JAVA_HOME": str(home_for_spark(java)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SCALA_VERSION": "2.13",
    }
    with (place / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [*daemon_command(java), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | variables,
            start_new_session=True,
        )
    process.returncode = 0  # it outlives this process on purpose, and this process never waits for it
    return process.pid


def _wait(pids: list[int], done: Any, place: Path, what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not done():
        if not all(map(_is_ours, pids)):
            raise PipelineError(f"{what} of the cluster ended during the start: see the logs in {place}")
        if time.monotonic() > end:
            raise PipelineError(
                f"{what} of the cluster did not start within {PATIENCE_S:.0f} s: see the logs in {place}"
            )
        time.sleep(_POLL_S)


def _alive(page: str) -> int | None:
    """Return how many workers the master knows, or None while the master does not answer."""
    try:
        with urlopen(f"{page}/json/", timeout=5) as reply:
            return int(json.load(reply)["aliveworkers"])
    except (OSError, ValueError, KeyError):
        return None


def _is_ours(pid: int) -> bool:
    """Whether the process is a running Spark daemon. The pid alone is not enough: another process may have got it."""
    with suppress(ChildProcessError):
        # A child of this process: its pid is not reused before `waitpid` has returned it, and it may not have a
        # command line yet.
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    try:
        return b"org.apache.spark.deploy." in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _end(pids: tuple[int, ...] | list[int]) -> None:
    """End the processes, workers before the master, so that the workers end their executors."""
    ours = [pid for pid in reversed(pids) if _is_ours(pid)]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in ours:
            if _is_ours(pid):
                os.kill(pid, number)
        end = time.monotonic() + 15
        while any(map(_is_ours, ours)) and time.monotonic() < end:
            time.sleep(_POLL_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
