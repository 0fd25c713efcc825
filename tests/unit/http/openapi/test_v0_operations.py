"""The OpenAPI document: every route is in it, and what it says of answers is what is sent."""

from typing import Any

import pytest
from msgspec import convert

from driftq.http.openapi.v0_operations import OPERATIONS
from driftq.http.openapi.v1_operations import OPERATIONS as BROKER_OPERATIONS
from driftq.http.routes import Route
from driftq.model.v0_answers import Claimed, DiffPage, Written
from driftq.testing import ServerRig


@pytest.fixture
def rig() -> ServerRig:
    return ServerRig()


def test_every_route_is_described_and_nothing_else(rig: ServerRig) -> None:
    routes: list[Route] = rig.app.routes
    assert {(route.method, route.path) for route in routes} == set(OPERATIONS)
    assert {(route.method, route.path) for route in rig.app.broker.routes} == set(BROKER_OPERATIONS)


def test_the_document_is_served_without_a_key(rig: ServerRig) -> None:
    status, body = rig.ask("GET", "/openapi.json")
    assert (status, body["openapi"]) == (200, "3.1.0")
    assert set(body["paths"]["/v0/topics/{topic}"]) == {"put", "patch", "get", "delete", "post"}
    refs = {part["$ref"].rpartition("/")[2] for part in _objects(body) if isinstance(part.get("$ref"), str)}
    assert refs <= set(body["components"]["schemas"])


def _objects(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value, *(found for inner in value.values() for found in _objects(inner))]
    if isinstance(value, list):
        return [found for inner in value for found in _objects(inner)]
    return []


def test_answers_that_are_spliced_have_the_shape_they_are_described_with(rig: ServerRig) -> None:
    record = {"data": {"a": 1}, "tag": "t", "node": "n", "meta": {"k": "v"}}
    rig.ask("PUT", "/v0/topics/q", {"type": "queue"})
    for path, body, shape in (
        ("/v0/topics/q", {"records": [record, {"data": None}]}, Written),
        ("/v0/topics/q/diff", {"include_tags": True}, DiffPage),
        ("/v0/topics/q/claim", {"node": "w", "max": 2}, Claimed),
    ):
        status, answer = rig.ask("POST", path, body)
        assert status == 200
        convert(answer, shape)
        fields = shape.__struct_encode_fields__
        assert set(fields[: len(fields) - len(shape.__struct_defaults__)]) <= set(answer) <= set(fields)
