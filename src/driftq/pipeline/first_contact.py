"""The first request to a server: a wrong address is an error after seconds, where later requests wait for a minute.

A query that runs waits for its server, which may be restarting. A query that has not begun most likely has a wrong
address, so it asks for the server's health first and gives up early. It also notices a server that is not DriftQ.
"""

import json
import time
from collections.abc import Callable

from driftq.pipeline.errors import PipelineError, UnreachableError

PATIENCE_S = 4.0
_PAUSE_S = 0.2
HEALTH = "/v0/health"
"""The path that the first request asks for."""


def check_server(server: str, ask: Callable[[float], tuple[int, bytes]]) -> None:
    """Raise UnreachableError if no server answers within 4 s, and PipelineError if it is not a DriftQ server.

    `ask` requests `HEALTH` until a deadline, and returns status and body of the answer. It raises OSError.
    """
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            status, body = ask(max(end, time.monotonic() + _PAUSE_S))
        except OSError as error:
            why = str(error) or type(error).__name__
        else:
            break
        if time.monotonic() + _PAUSE_S > end:
            raise UnreachableError(
                f"the server at {server} does not answer: {why}; check that it runs and that the address is right"
            )
        time.sleep(_PAUSE_S)
    if not _is_ours(body):
        raise PipelineError(
            f"the server at {server} is not a DriftQ server: it answered {HEALTH} with status {status} and "
            f"{body[:60].decode('utf-8', 'replace')!r}; check the address (option server, or DRIFTQ_URL)"
        )


def _is_ours(body: bytes) -> bool:
    """Whether the body is the health of a DriftQ server, or an error in its form."""
    try:
        answer = json.loads(body)
    except ValueError:
        return False
    if not isinstance(answer, dict):
        return False
    error = answer.get("error")
    return "uptime_ms" in answer or (isinstance(error, dict) and "code" in error) or "code" in answer
