"""Pytest fixtures for projects that use DriftQ: a server for one test, and a client of it.

The server runs in a thread of the test process, on a free port. Its files are in memory if the system has /dev/shm,
and are removed after the test. Meanwhile `DRIFTQ_URL` has its address, so that code which creates its own `Client()`
uses it too.

The fixtures import what they need, so a project that does not use them pays nothing.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import asyncio

    from driftq.client import Client

_MEMORY = "/dev/shm"
_DRAIN_S = 1.0


class DriftQServer:
    """A running server. `settings` are fields of `driftq.config.Settings`."""

    def __init__(self, data_dir: str, **settings: object) -> None:
        import threading

        from driftq.system.runtime import ThreadWorker

        self.data_dir = data_dir
        self.url = ""
        self._settings = settings
        self._failures: list[BaseException] = []
        self._begun = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._stopping: asyncio.Event
        self._thread: ThreadWorker[Callable[[], None]] = ThreadWorker("driftq-server", _run)
        self._thread.put(self._run)
        self._begun.wait()
        for failure in self._failures:
            self._thread.close()
            raise failure

    def stop(self) -> None:
        """Stop the server; the data stays in `data_dir`."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.close()

    def _run(self) -> None:
        import asyncio

        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001  # raised again by the constructor
            self._failures.append(error)
        finally:
            self._begun.set()

    async def _serve(self) -> None:
        import asyncio

        from msgspec import convert

        from driftq.config import Settings
        from driftq.http.app import App
        from driftq.http.keys import ApiKeys
        from driftq.http.transport.connection_context import Terms
        from driftq.http.transport.listener import Listener, choose_address
        from driftq.server import Server
        from driftq.system.clock import SystemClock
        from driftq.system.disk import OsDisk
        from driftq.system.machine import read_boot_id
        from driftq.system.runtime import AsyncioRuntime

        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        settings = convert({"data_dir": self.data_dir, "port": 0, **self._settings}, Settings)
        runtime = AsyncioRuntime(self._loop)
        server = Server(settings, OsDisk(), SystemClock(), runtime, boot_id=read_boot_id(), pid=os.getpid())
        app = App(server, ApiKeys.parse(""))
        listener = Listener(app.handle, runtime, Terms.of(settings), app.shortcut)
        self.url = f"http://{await listener.open(choose_address(settings))}"
        self._begun.set()
        await self._stopping.wait()
        await listener.close(_DRAIN_S)
        await runtime.future(server.close())


def _run(jobs: list[Callable[[], None]]) -> None:
    for job in jobs:
        job()


@pytest.fixture
def driftq_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[DriftQServer]:
    """Start a new server for this test only."""
    memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="driftq-test-", dir=memory) as directory:
        server = DriftQServer(directory)
        monkeypatch.setenv("DRIFTQ_URL", server.url)
        monkeypatch.delenv("DRIFTQ_API_KEY", raising=False)
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture
def driftq_client(driftq_server: DriftQServer) -> "Iterator[Client]":
    """Return a client of the test's own server."""
    from driftq.client import Client

    with Client(driftq_server.url) as client:
        yield client
