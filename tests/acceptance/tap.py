"""A proxy in front of a server: it counts requests and can lose the answer to one."""

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Tap:
    """Passes bytes between clients and a server, and notes the path of every request."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._server = host, int(port)
        self._lock = threading.Lock()
        self._losing = ""
        self.paths: Counter[str] = Counter()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_answer(self, path: str) -> None:
        """Lose the answer to the next request with this path, and close its connection."""
        self._losing = path

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._server) as server:
            lost = threading.Event()
            threading.Thread(target=self._answer, args=(client, server, lost), daemon=True).start()
            with suppress(OSError):
                while chunk := client.recv(1 << 20):
                    self._note(chunk, lost)
                    server.sendall(chunk)

    def _note(self, chunk: bytes, lost: threading.Event) -> None:
        """Count a request. A client sends its head in one piece, so a piece that starts with a method is a head."""
        if not chunk.startswith((b"POST ", b"GET ", b"PUT ")):
            return
        path = chunk.split(b" ", 2)[1].split(b"?")[0].decode()
        with self._lock:
            self.paths[path] += 1
            if path == self._losing:
                self._losing = ""
                lost.set()

    @staticmethod
    def _answer(client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        with suppress(OSError):
            while (chunk := server.recv(1 << 20)) and not lost.is_set():
                client.sendall(chunk)
        for end in (client, server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def tapped(address: str) -> Iterator[Tap]:
    """A proxy for the server at this address."""
    tap = Tap(address)
    try:
        yield tap
    finally:
        with suppress(OSError):
            tap.listener.shutdown(socket.SHUT_RDWR)
        tap.listener.close()
