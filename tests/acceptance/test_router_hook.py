"""Both example routers on a real server: messages are where the router sent them, and a broken one refuses nothing."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from tests.support.process import PATIENCE_S, ServerProcess, environment, serving

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples" / "routers"


def _produce(server: ServerProcess, topic: str, value: str, *topics: str) -> None:
    for name in (topic, *topics):
        assert server.ask("POST", "/v1/topics", {"name": name})[0] == 201
    assert server.ask("POST", "/v1/produce", {"topic": topic, "value": value})[0] == 200


def _first(server: ServerProcess, topic: str) -> dict[str, Any]:
    """The first message of a topic."""
    connection = HTTPConnection(server.address, timeout=PATIENCE_S)
    try:
        connection.request("GET", f"/v1/consume?topic={topic}&group=g&owner=o")
        found: dict[str, Any] = json.decode(connection.getresponse().readline())
        return found
    finally:
        connection.close()


def test_a_rule_table_in_the_server_decides(tmp_path: Path) -> None:
    """inv1: 71"""
    paths = os.pathsep.join([str(EXAMPLES), environment()["PYTHONPATH"]])
    rules = str(EXAMPLES / "rules.json")
    with serving(tmp_path, "--router", "rule_table:router", PYTHONPATH=paths, RULES=rules) as server:
        server.wait_ready()
        _produce(server, "orders.eu", "refund, please")
        assert _first(server, "orders.eu")["routing"] == {"label": "refund", "meta": {"team": "billing"}}


@contextmanager
def _classifier() -> Iterator[str]:
    """The classifier with its stub, on a free port; its address."""
    code = (
        "from classifier import StubModel, serve; server = serve(StubModel()); "
        "print(server.server_port, flush=True); server.serve_forever()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=EXAMPLES, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/"
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def test_a_classifier_behind_an_address_decides_and_its_loss_refuses_nothing(tmp_path: Path) -> None:
    """inv1: 71"""
    with _classifier() as url, serving(tmp_path, "--router-url", url) as server:
        server.wait_ready()
        _produce(server, "tasks", "Please translate this", "tasks.translate")
        found = _first(server, "tasks.translate")
        assert found["routing"] == {"label": "translate", "meta": {"score": "0.90"}}
        assert found["envelope"] == {"target_topic": "tasks.translate"}
    with serving(tmp_path, "--router-url", url, "--router-fail", "closed") as server:
        server.wait_ready()
        status, body = server.ask("POST", "/v1/produce", {"topic": "tasks", "value": "write code"})
        assert (status, body["error"]) == (503, "UNAVAILABLE")
    with serving(tmp_path, "--router-url", url) as server:
        server.wait_ready()
        assert server.ask("POST", "/v1/produce", {"topic": "tasks", "value": "write code"})[0] == 200
        assert "routing" not in _first(server, "tasks")


def test_a_router_that_cannot_be_loaded_refuses_the_start(tmp_path: Path) -> None:
    with serving(tmp_path, "--router", "no_such_module:router") as server:
        code, errors = server.ended()
        assert code == 1
        assert "no_such_module" in errors
