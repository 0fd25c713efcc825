"""Real processes for tests: the server, and how both it and the workers find the package."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import IO, Any

from msgspec import json

import driftq

PATIENCE_S = 30.0
_INFO = re.compile(r"\S+Z INFO driftq\.")
ROOT = Path(driftq.__file__).parents[1]


def environment(**more: str) -> dict[str, str]:
    """The environment of a child: no settings of ours but those given, the same package as here, bytecode allowed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DRIFTQ_")}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    paths = [str(ROOT), *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(paths)} | more


class Served:
    """A server somewhere on this machine that has written its address to a file."""

    def __init__(self, port_file: Path) -> None:
        self.port_file = port_file

    @property
    def address(self) -> str:
        """What stands in the port file."""
        return self.port_file.read_text(encoding="utf-8")

    def get(self, path: str) -> tuple[int, dict[str, object]]:
        """Status and body of one GET on a connection of its own."""
        return self.ask("GET", path)

    def ask(self, method: str, path: str, value: object = None) -> tuple[int, dict[str, Any]]:
        """Status and body of one request on a connection of its own; `value` is sent as JSON."""
        status, body = self._ask(method, path, value)
        return status, json.decode(body, type=dict[str, Any])

    def metric(self, name: str) -> float:
        """The value of a metric; its labels, if it has any, are part of the name."""
        lines = self._ask("GET", "/v0/metrics")[1].decode().splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))

    def _ask(self, method: str, path: str, value: object = None) -> tuple[int, bytes]:
        connection = HTTPConnection(self.address, timeout=PATIENCE_S)
        try:
            body = None if value is None else json.encode(value)
            connection.request(method, path, body, {} if body is None else {"content-type": "application/json"})
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()


class ServerProcess(Served):
    """One `driftq serve` on a data directory, and a port of its own."""

    def __init__(self, directory: Path, *flags: str, data_dir: str | None = None, **variables: str) -> None:
        super().__init__(directory / "port")
        self.data_dir = Path(data_dir) if data_dir is not None else directory / "data"
        self.port_file.unlink(missing_ok=True)
        self._flags = flags
        self.began_s = time.monotonic()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "driftq", "serve", "--port", "0", "--port-file", str(self.port_file)),
                *("--data-dir", str(self.data_dir), *flags),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(**variables),
            text=True,
        )

    def wait_ready(self) -> str:
        """Until it answers that it is ready; the line it printed."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.ended()
        assert self.get("/readyz")[0] == 200
        return line

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait; the exit code."""
        self.process.send_signal(number)
        return self.ended()[0]

    def ended(self) -> tuple[int, str]:
        """Wait for the end; the exit code, and what stood on standard error but for lines of the level `info`."""
        code, errors = self.ended_with_log()
        return code, "".join(line for line in errors.splitlines(keepends=True) if not _INFO.match(line))

    def ended_with_log(self) -> tuple[int, str]:
        """Wait for the end; the exit code, and all that stood on standard error."""
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, errors


@contextmanager
def serving(directory: Path, *flags: str, data_dir: str | None = None, **variables: str) -> Iterator[ServerProcess]:
    """A server that is gone when the test is."""
    server = ServerProcess(directory, *flags, data_dir=data_dir, **variables)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate(timeout=PATIENCE_S)


@contextmanager
def worker(data_dir: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """A process that writes until it is killed, and what it tells."""
    command = [sys.executable, str(Path(__file__).with_name("worker.py")), str(data_dir), *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout
        finally:
            process.kill()
