"""The servers that are measured, each a process of its own: DriftQ, and Redis where the system has it."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.processes import cpu_seconds, resident_mib

START_SECONDS = 20.0
QUIET_SECONDS = 60.0


class Process:
    """A server that has been started."""

    def __init__(self, process: "subprocess.Popen[bytes]", address: tuple[str, int]) -> None:
        self._process = process
        self.address = address

    def url(self, scheme: str = "http") -> str:
        """Return its address as a client is given it."""
        host, port = self.address
        return f"{scheme}://{host}:{port}"

    def end(self, number: int) -> None:
        """Send it a signal, and wait until it is gone."""
        self._process.send_signal(number)
        self._process.wait(60)

    def resident_mib(self) -> float:
        """Its resident memory."""
        return resident_mib(self._process.pid)

    def cpu_seconds(self) -> float:
        """CPU time it has used."""
        return cpu_seconds(self._process.pid)

    def wait_until_quiet(self) -> None:
        """Until what follows a load, as sealing and checkpoints, is over: a second with next to no work in it."""
        deadline = time.monotonic() + QUIET_SECONDS
        before = self.cpu_seconds()
        while time.monotonic() < deadline:
            time.sleep(1)
            now = self.cpu_seconds()
            if now - before < 0.05:
                return
            before = now
        raise AssertionError(f"the server is busy {QUIET_SECONDS} s after the load")

    def wait_until(self, path: str) -> None:
        """Wait until a probe is answered with success."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.call("GET", path)
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return

    def call(self, method: str, path: str, body: object = None) -> Any:
        """One request of JSON."""
        connection = http.client.HTTPConnection(*self.address, timeout=30)
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"content-type": "application/json"})
        reply = connection.getresponse()
        answer = json.loads(reply.read())
        connection.close()
        if reply.status >= 400:
            raise AssertionError(f"{method} {path}: {answer}")
        return answer


def start(directory: str, **settings: str) -> Process:
    """DriftQ on a directory, from the moment it listens on."""
    port_file = Path(directory, "port")
    port_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "driftq", "serve", "--port", "0", "--port-file", str(port_file)]
    process = subprocess.Popen(
        [*command, "--data-dir", str(Path(directory, "data"))],
        stdout=subprocess.DEVNULL,
        env=os.environ | settings,
    )
    deadline = time.monotonic() + START_SECONDS
    while not port_file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError("the server did not start")
        time.sleep(0.01)
    host, _, port = port_file.read_text().rpartition(":")
    return Process(process, (host, int(port)))


@contextmanager
def scratch(parent: str | None = None) -> Iterator[str]:
    """A directory of its own."""
    directory = tempfile.mkdtemp(prefix="driftq-bench-", dir=parent)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def driftq(parent: str | None = None, **settings: str) -> Iterator[Process]:
    """A fresh DriftQ on a directory of its own."""
    with scratch(parent) as directory:
        server = start(directory, **settings)
        try:
            yield server
        finally:
            server.end(signal.SIGTERM)


def missing_redis() -> str | None:
    """Why the peer is not there."""
    return None if shutil.which("redis-server") else "redis-server is not installed on this machine"


@contextmanager
def redis(parent: str | None = None, *, appendfsync: str) -> Iterator[Process]:
    """A fresh Redis with an append-only file on the same disk."""
    directory = tempfile.mkdtemp(prefix="driftq-bench-", dir=parent)
    port = free_port()
    process = subprocess.Popen(
        [
            "redis-server",
            *("--bind", "127.0.0.1", "--port", str(port), "--dir", directory),
            *("--appendonly", "yes", "--appendfsync", appendfsync, "--save", ""),
        ],
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_for_port(process, port)
        yield Process(process, ("127.0.0.1", port))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        shutil.rmtree(directory, ignore_errors=True)


def free_port() -> int:
    """Return a port of the loopback network that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def wait_for_port(process: "subprocess.Popen[bytes]", port: int) -> None:
    """Wait until a server that was started listens."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError("a peer did not start")
