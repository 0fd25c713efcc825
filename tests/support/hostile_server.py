"""A server on loopback that says and does what a test wants, whatever the rules of HTTP are."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CERTIFICATE = str(Path(__file__).parents[1] / "acceptance" / "tls" / "loopback.pem")
"""For 127.0.0.1, signed by itself, with its key."""

Play = Callable[[socket.socket, int], None]
"""What a server does on its n-th connection, from 0."""


@contextmanager
def hostile(play: Play, listener: socket.socket | None = None) -> Iterator[str]:
    """A server that does as it likes; the address of it."""
    listener = listener or socket.create_server(("127.0.0.1", 0))
    gone = threading.Event()

    def one(connection: socket.socket, number: int) -> None:
        with connection, suppress(OSError):
            play(connection, number)

    def accept() -> None:
        number = 0
        while not gone.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=one, args=(connection, number), daemon=True).start()
            number += 1

    threading.Thread(target=accept, daemon=True).start()
    try:
        name = listener.getsockname()
        yield f"http://127.0.0.1:{name[1]}" if isinstance(name, tuple) else "http+unix://" + name.replace("/", "%2F")
    finally:
        gone.set()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def heard(connection: socket.socket) -> bytes:
    """The head of a request."""
    text = b""
    while b"\r\n\r\n" not in text:
        chunk = connection.recv(65536)
        if not chunk:
            raise OSError("gone")
        text += chunk
    return text


def says(*pieces: bytes, pause_s: float = 0.0, linger: bool = False) -> Play:
    """A server that says this to every request, and hangs up."""

    def play(connection: socket.socket, _: int) -> None:
        heard(connection)
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(pause_s)
        if linger:
            connection.recv(1)

    return play


def reply(body: bytes, *more: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%s\r\n" % (len(body), b"".join(more)) + body
