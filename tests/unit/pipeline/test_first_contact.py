"""The first request to a server: a wrong address is an error after seconds, whatever is there."""

import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from driftq.pipeline import PipelineError, first_contact
from driftq.pipeline.errors import UnreachableError
from driftq.pipeline.server_connection import Wire
from driftq.pipeline.source.data_source import DriftqSource


class _Page(BaseHTTPRequestHandler):
    """A web server that is not DriftQ, unless its body says so."""

    status, body = 404, b"<!DOCTYPE HTML><title>nothing here</title>"

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def web() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _url(server: HTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def test_a_server_that_is_not_driftq_is_named_as_such(web: HTTPServer) -> None:
    with pytest.raises(PipelineError, match=rf"{_url(web)} is not a DriftQ server: .*status 404 and .<!DOCTYPE HTML>"):
        Wire(_url(web), None).check()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b'{"status": "ok", "version": "1", "uptime_ms": 5}'),
        (401, b'{"error": {"code": "unauthorized", "message": "missing or unknown API key"}}'),
    ],
)
def test_a_server_with_its_health_or_an_error_of_ours_is_driftq(
    web: HTTPServer, status: int, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Page, "status", status)
    monkeypatch.setattr(_Page, "body", body)
    Wire(_url(web), None).check()


def test_an_address_without_a_server_is_given_up_early(monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_contact.PATIENCE_S < 5
    monkeypatch.setattr(first_contact, "PATIENCE_S", 0.0)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(UnreachableError, match=f"the server at {url} does not answer.*address is right"):
            Wire(url, None).check()
        with pytest.raises(UnreachableError, match="does not answer"):
            DriftqSource({"topic": "t", "server": url, "startingOffsets": "latest"})
