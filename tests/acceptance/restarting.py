"""A server that dies and comes back, on the same data and the same port."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from driftq.client import Retries
from tests.support.process import PATIENCE_S, ServerProcess, serving

PATIENT = Retries(count=200, backoff_s=0.05, backoff_max_s=0.2)
"""Of a client that does not give up before it is back."""


class Restarting:
    """One server after the other on the same data and the same port."""

    def __init__(self, directory: Path, server: ServerProcess) -> None:
        self._directory = directory
        self.address = server.address
        self.server = server

    def again(self, number: signal.Signals) -> None:
        self.server.stop(number)
        port = self.address.rpartition(":")[2]
        self.server = ServerProcess(self._directory, "--port", port)
        self.server.wait_ready()


@contextmanager
def restarting(directory: Path) -> Iterator[Restarting]:
    with serving(directory) as first:
        first.wait_ready()
        host = Restarting(directory, first)
        try:
            yield host
        finally:
            if host.server is not first:
                host.server.process.kill()
                host.server.process.communicate(timeout=PATIENCE_S)
