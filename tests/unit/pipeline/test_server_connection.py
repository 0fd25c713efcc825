"""A kept connection, and a server that has let go of it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from driftq.pipeline.errors import DeniedError, UnreachableError
from driftq.pipeline.server_connection import Wire

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class Forgetful:
    """Answers one request of each connection and ends it, without having said so."""

    def __init__(self, answers: int, answer: bytes = _ANSWER) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.let_go = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._serve, args=(answers,))
        self._thread.start()

    def _serve(self, answers: int) -> None:
        with self._listener, suppress(OSError):  # the listener is closed where a test wants fewer answers
            for _ in range(answers):
                connection, _ = self._listener.accept()
                with connection:
                    while not connection.recv(65536).endswith(b"}"):
                        pass
                    connection.sendall(self._answer)
                self.let_go.release()

    def join(self) -> None:
        self._thread.join()

    def stop(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()


@pytest.fixture
def forgetful() -> Iterator[Forgetful]:
    server = Forgetful(2)
    yield server
    server.stop()


def test_who_does_not_wait_still_asks_again_where_a_kept_connection_has_ended(forgetful: Forgetful) -> None:
    with Wire(forgetful.address, None) as wire:
        for _ in range(2):
            assert wire.put("/x", {"seq": 1}, patient=False) == {}
            forgetful.let_go.acquire()
        forgetful.join()
        with pytest.raises(UnreachableError, match="does not answer"):
            wire.put("/x", {"seq": 1}, patient=False)


def test_a_key_that_is_refused_is_told_by_its_own_error() -> None:
    said = b'{"code": "unauthorized", "message": "unknown key"}'
    head = b"HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(said)
    server = Forgetful(1, head + said)
    try:
        with Wire(server.address, None) as wire, pytest.raises(DeniedError, match=r"unknown key.*DRIFTQ_API_KEY"):
            wire.put("/x", {})
    finally:
        server.stop()
