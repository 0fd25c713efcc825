"""The peers that `make peers` installs, and the programs of `bench.programs`: each runs in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from bench.servers import Process, free_port, missing_redis, scratch, wait_for_port

ROOT = Path(__file__).parents[1]
PEERS = ROOT / ".peers"
_PROGRAMS = ROOT / "bench" / "programs"
_PYTHON = PEERS / "python" / "bin" / "python"
_NATS = PEERS / "bin" / "nats-server"
PROGRAM_SECONDS_MAX = 120

Figures = dict[str, float]


def missing_redis_py() -> str | None:
    """Why redis-py cannot be measured, if it cannot."""
    return missing_redis() or _missing(_PYTHON)


def missing_bullmq() -> str | None:
    """Why BullMQ cannot be measured, if it cannot."""
    return missing_redis() or _missing(PEERS / "node" / "node_modules" / "bullmq")


def missing_nats() -> str | None:
    """Why JetStream cannot be measured, if it cannot."""
    return _missing(_NATS) or _missing(_PYTHON)


def missing_any() -> str | None:
    """Why not all peers can be measured, if they cannot."""
    return missing_bullmq() or missing_nats()


def _missing(path: Path) -> str | None:
    return None if path.exists() else f"{path.relative_to(ROOT)} is missing: run `make peers`"


@contextmanager
def nats(parent: str | None = None) -> Iterator[Process]:
    """A fresh NATS server with JetStream on the same disk."""
    with scratch(parent) as directory:
        port = free_port()
        process = subprocess.Popen(
            [str(_NATS), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", directory],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for_port(process, port)
            yield Process(process, ("127.0.0.1", port))
        finally:
            process.kill()
            process.wait(30)


def python_program(name: str, *arguments: object, peer: bool = False) -> list[str]:
    """Return the command of a program of `bench.programs`, in the environment of peers if it is one."""
    return [str(_PYTHON) if peer else sys.executable, "-m", f"bench.programs.{name}", *map(str, arguments)]


def node_program(name: str, *arguments: object) -> list[str]:
    """Return the command of a Node program."""
    return ["node", str(_PROGRAMS / f"{name}.mjs"), *map(str, arguments)]


def run_program(command: Sequence[str], when_ready: Callable[[], object] | None = None) -> Figures:
    """Return what a program prints. With `when_ready`, its first line says that it is, and this is called then."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=ROOT, env=os.environ | {"PEERS": str(PEERS)}, text=True
    )
    try:
        if when_ready is not None:
            assert process.stdout is not None
            _line(process.stdout, command)
            when_ready()
        printed, _ = process.communicate(timeout=PROGRAM_SECONDS_MAX)
    except BaseException:
        process.kill()
        process.wait(30)
        raise
    if process.returncode:
        raise AssertionError(f"{' '.join(command)} ended with status {process.returncode}")
    found: Figures = json.loads(printed.splitlines()[-1])
    return found


def _line(stdout: IO[str], command: Sequence[str]) -> None:
    if not stdout.readline():
        raise AssertionError(f"{' '.join(command)} ended before it was ready")
