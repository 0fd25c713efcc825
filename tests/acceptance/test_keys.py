"""Keys in a real process: what starts, what is kept, and places that come back."""

import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from tests.support.process import PATIENCE_S, ServerProcess, serving

pytestmark = pytest.mark.slow

SECRET = "sesame-5f1d7c9e"


def ask(server: ServerProcess, method: str, path: str, body: Any = None, key: str | None = SECRET) -> tuple[int, Any]:
    connection = HTTPConnection(server.address, timeout=PATIENCE_S)
    try:
        send(connection, method, path, body, key)
        reply = connection.getresponse()
        return reply.status, json.decode(reply.read())
    finally:
        connection.close()


def send(connection: HTTPConnection, method: str, path: str, body: Any = None, key: str | None = SECRET) -> None:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    connection.request(method, path, None if body is None else json.encode(body), headers)


@pytest.mark.parametrize("entry", ["k:reed", "k:read+everything", ":read"])
def test_a_bad_entry_is_refused_in_one_line_that_shows_no_key(tmp_path: Path, entry: str) -> None:
    with serving(tmp_path, DRIFTQ_API_KEYS=f"{SECRET},{entry}") as server:
        code, errors = server.ended()
    assert (code, errors.count("\n")) == (1, 1)
    assert "entry 2 of DRIFTQ_API_KEYS" in errors
    assert SECRET not in errors
    assert not server.data_dir.exists()


def test_a_key_is_neither_logged_nor_stored(tmp_path: Path) -> None:
    with serving(tmp_path, DRIFTQ_API_KEYS=f"{SECRET},other", DRIFTQ_LOG_LEVEL="debug") as server:
        line = server.wait_ready()
        assert ask(server, "POST", "/v0/topics/t", {"records": [{"data": 1}]})[0] == 201
        assert ask(server, "GET", "/v0/topics/t", key=f"{SECRET}x")[0] == 401
        assert ask(server, "GET", f"/v0/topics/t?token={SECRET}", key=None)[0] == 401
        server.process.terminate()
        code, errors = server.ended()
    assert code == 0
    assert SECRET not in line + errors
    kept = [path for path in server.data_dir.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert kept == []


def test_a_caller_who_goes_gives_the_place_back_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, DRIFTQ_API_KEYS=SECRET, DRIFTQ_MAX_INFLIGHT_PER_KEY="1") as server:
        server.wait_ready()
        assert ask(server, "PUT", "/v0/topics/t", {})[0] == 201
        poll = HTTPConnection(server.address, timeout=PATIENCE_S)
        send(poll, "POST", "/v0/topics/t/diff", {"wait_ms": 25_000})
        wait_for(server, 429)
        poll.close()
        assert wait_for(server, 200) < 5.0


def test_a_stop_answers_polls_that_wait(tmp_path: Path) -> None:
    with serving(tmp_path, DRIFTQ_API_KEYS=SECRET, DRIFTQ_MAX_INFLIGHT_PER_KEY="1") as server:
        server.wait_ready()
        assert ask(server, "PUT", "/v0/topics/t", {})[0] == 201
        poll = HTTPConnection(server.address, timeout=PATIENCE_S)
        send(poll, "POST", "/v0/topics/t/diff", {"wait_ms": 25_000})
        wait_for(server, 429)
        began = time.monotonic()
        server.process.terminate()
        reply = poll.getresponse()
        assert (reply.status, json.decode(reply.read())["records"]) == (200, [])
        assert server.ended()[0] == 0
        assert time.monotonic() - began < 10.0


def wait_for(server: ServerProcess, status: int) -> float:
    """Ask for the topic until the answer has this status; how long that took."""
    began = time.monotonic()
    while ask(server, "GET", "/v0/topics/t")[0] != status:
        assert time.monotonic() - began < PATIENCE_S
    return time.monotonic() - began
