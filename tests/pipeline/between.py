"""Between Spark and the server: passes requests on, and does harm at one of them.

A kill has to fall between two steps of the protocol, and the product has no hooks for that. What stands between the
two can see each step begin and end: the request and its answer.
"""

import os
import signal
import threading
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

_PATIENCE_S = 60.0


class Harm(NamedTuple):
    """What happens, and when: at the n-th request whose path ends so. The request gets lost, or, `after`, its answer.

    `act` is given the port of who asked. With a delay nothing gets lost, and it comes that much later.
    """

    ending: str
    number: int
    after: bool
    act: Callable[[int], None]
    delay_s: float | None = None


class Between:
    """A server in front of the server."""

    def __init__(self, address: Callable[[], str]) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._harm: Harm | None = None
        self._seen = 0
        self.done = threading.Event()
        """The harm has been done."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except (OSError, HTTPException):
                    self.close_connection = True  # whoever asked, or the server, is gone

            def pass_on(self) -> None:
                outer.pass_on(self)

            do_GET = do_POST = do_PUT = do_DELETE = pass_on  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """No more."""
        self._server.shutdown()
        self._server.server_close()

    def arm(self, harm: Harm | None) -> None:
        """The next harm; counts begin anew."""
        with self._lock:
            self._harm, self._seen = harm, 0
            self.done.clear()

    def pass_on(self, request: BaseHTTPRequestHandler) -> None:
        """One request and its answer."""
        body = request.rfile.read(int(request.headers.get("content-length") or 0))
        harm = self._due(request.path)
        port = request.client_address[1]
        if harm is not None and harm.delay_s is not None:
            threading.Timer(harm.delay_s, harm.act, [port]).start()
            harm = None
        if harm is not None and not harm.after:
            harm.act(port)
            raise ConnectionResetError("the request gets lost")
        connection = HTTPConnection(self._address(), timeout=_PATIENCE_S)
        try:
            headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
            connection.request(request.command, request.path, body or None, headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if harm is not None:
            harm.act(port)
            raise ConnectionResetError("the answer gets lost")
        request.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                request.send_header(name, value)
        request.send_header("content-length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    def _due(self, path: str) -> Harm | None:
        with self._lock:
            harm = self._harm
            if harm is None or not path.partition("?")[0].endswith(harm.ending):
                return None
            self._seen += 1
            if self._seen != harm.number:
                return None
            self._harm = None
            self.done.set()
            return harm


def owner_of(port: int) -> int | None:
    """The process that has a connection from a port of this machine."""
    lines = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    inodes = {fields[9] for line in lines if int((fields := line.split())[1].rpartition(":")[2], 16) == port}
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == os.getuid() and wanted & {
                os.readlink(link) for link in (process / "fd").iterdir()
            }:
                return int(process.name)
        except OSError:
            continue  # it ended meanwhile, or is none of ours
    return None


def kill(pid: int | None) -> None:
    """At once."""
    if pid is not None and pid != os.getpid():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return


def child_of(pid: int, command: str) -> int | None:
    """The child of a process that runs a command."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
            if int(fields[2].split()[1]) == pid and (process / "comm").read_text(encoding="utf-8").strip() == command:
                return int(process.name)
        except OSError:
            continue
    return None
