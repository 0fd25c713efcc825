"""The OpenAPI document against a real server: everything it allows, and much that it does not.

Streams are left out, for who asks for one waits for ever; their refusals are tested elsewhere.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from driftq.http.openapi.v0_operations import OPERATIONS
from driftq.http.openapi.v1_operations import OPERATIONS as BROKER_OPERATIONS
from tests.support.process import ServerProcess, serving

_STREAMS = {"/v0/watch/:wid", "/v0/topics/:topic/work", "/v0/ws", "/v1/consume"}
_EXAMPLES = 12

CASES = [
    (method, path, wrong)
    for (method, path), operation in (OPERATIONS | BROKER_OPERATIONS).items()
    for wrong in (False, True)
    if path not in _STREAMS and (not wrong or operation.body is not None)
]
"""A request is wrong by its body: any text is a name, and what cannot be read in a query stands for its default."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("openapi")
    with serving(directory, "--backup-dir", str(directory / "backups")) as running:
        running.wait_ready()
        yield running


@pytest.fixture(scope="module")
def schema(server: ServerProcess) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_url(f"http://{server.address}/openapi.json")


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path", "wrong"), CASES)
def test_no_answer_is_a_mistake_or_undocumented(
    schema: schemathesis.BaseSchema, server: ServerProcess, method: str, path: str, wrong: bool
) -> None:
    """Bodies of the right shape and of wrong ones, names and queries of all kinds."""
    braced = "/".join(f"{{{part[1:]}}}" if part.startswith(":") else part for part in path.split("/"))
    operation = schema[braced][method]
    mode = GenerationMode.NEGATIVE if wrong else GenerationMode.POSITIVE
    seen: set[int] = set()

    @settings(
        max_examples=_EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True
    )
    @given(case=operation.as_strategy(mode))
    def ask(case: schemathesis.Case[Any]) -> None:
        reply = case.call()
        seen.add(reply.status_code)
        assert reply.status_code < 500, reply.text
        case.validate_response(
            reply,
            checks=[status_code_conformance, content_type_conformance, response_schema_conformance],
        )

    ask()
    assert seen
    assert server.get("/readyz")[0] == 200
