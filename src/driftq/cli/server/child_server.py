"""A server in a process of its own, for whoever wants one for a while: started, waited for, stopped.

It has no settings of this process's environment, and listens on this machine only.
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
    """The server did not start, or did not stop."""

    code = "no_server"


class ChildServer:
    """A server that is gone when the context is. What it has to say goes to `log`."""

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
        """Host and port."""
        return self._port_file.read_text(encoding="utf-8")

    def stop(self) -> None:
        """Tell it to stop, and wait for that. Raises ChildError."""
        self.process.terminate()
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise ChildError(f"the server did not stop within {PATIENCE_S:.0f} s") from None
        if code != 0:
            raise ChildError(f"a server that was told to stop exited with {code}")

    def kill(self) -> None:
        """Be done with it."""
        self.process.kill()
        self.process.communicate()
        self._port_file.unlink(missing_ok=True)

    def _wait_until_it_listens(self) -> None:
        """Its first line, or its end, comes when it listens, or will never."""
        assert self.process.stdout is not None
        spoken, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        if not spoken:
            raise ChildError(f"the server did not start within {PATIENCE_S:.0f} s")
        if not self.process.stdout.readline():
            said = self._log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
            raise ChildError(f"the server did not start: {said.removeprefix('driftq: ')}")
        if not self._port_file.exists():
            raise ChildError("the server listens, but wrote no port file")
