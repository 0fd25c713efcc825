"""Runs a temporary server in a child process: starts it, waits until it listens, stops it.

The child ignores the DRIFTQ_ variables of this process's environment and listens on 127.0.0.1 only.
"""

import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from driftq.errors import DriftQError

PATIENCE_S = 30.0


class ChildError(DriftQError):
    """Raised when the child server did not start or did not stop."""

    code = "no_server"


class ChildServer:
    """Context manager for a server process that is killed at the end. Its standard error goes to `log`."""

    def __init__(self, data_dir: Path, log: Path, *, port: int = 0, flags: Sequence[str] = ()) -> None:
        self._log = log
        self._port_file = port_file = log.with_suffix(".port")
        port_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "driftq", "serve", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--port-file", str(port_file), "--data-dir", str(data_dir), *flags]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DRIFTQ_")}
        with log.open("wb") as said:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, env=environment)

    def __enter__(self) -> Self:
        try:
            self._wait_until_it_listens()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    @property
    def address(self) -> str:
        """Return host and port of the server, from its port file."""
        return self._port_file.read_text(encoding="utf-8")

    def stop(self) -> None:
        """Send SIGTERM and wait for the exit. Raise ChildError if it takes too long or the exit code is not 0."""
        self.process.terminate()
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise ChildError(
                f"the server did not stop within {PATIENCE_S:.0f} s after SIGTERM; it is killed now"
            ) from None
        if code != 0:
            raise ChildError(f"the server exited with code {code} after SIGTERM")

    def kill(self) -> None:
        """Kill the server if it still runs, and remove the port file."""
        self.process.kill()
        self.process.communicate()
        self._port_file.unlink(missing_ok=True)

    def _wait_until_it_listens(self) -> None:
        """Wait for the first line on standard output: then the server listens. Raise ChildError if there is none."""
        assert self.process.stdout is not None
        spoken, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        if not spoken:
            raise ChildError(f"the server did not start within {PATIENCE_S:.0f} s")
        if not self.process.stdout.readline():
            said = self._log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
            raise ChildError(f"the server did not start: {said.removeprefix('driftq: ')}")
        if not self._port_file.exists():
            raise ChildError("the server listens, but did not write its port file")
