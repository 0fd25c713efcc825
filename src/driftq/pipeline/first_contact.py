"""The first request to a server: a wrong address is an error after seconds, where later requests wait for a minute.

A query that runs waits for its server, which may be restarting. A query that has not begun most likely has a wrong
address, so it asks for the server's health first and gives up early. It also notices a server that is not DriftQ.
"""

import json
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from driftq.pipeline.errors import PipelineError, UnreachableError

PATIENCE_S = 4.0
_PAUSE_S = 0.2
_PATH = "/v0/health"


def check_server(server: str, prefix: str = "") -> None:
    """Raise UnreachableError if no server answers within 4 s, and PipelineError if it is not a DriftQ server."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            status, body = _health(server, prefix, max(_PAUSE_S, end - time.monotonic()))
        except (OSError, HTTPException) as error:
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
            f"the server at {server} is not a DriftQ server: it answered {_PATH} with status {status} and "
            f"{body[:60].decode('utf-8', 'replace')!r}; check the address (option server, or DRIFTQ_URL)"
        )


def _health(server: str, prefix: str, timeout_s: float) -> tuple[int, bytes]:
    parts = urlsplit(server)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.netloc, timeout=timeout_s)
    try:
        connection.request("GET", prefix + _PATH)
        reply = connection.getresponse()
        return reply.status, reply.read(1 << 16)
    finally:
        connection.close()


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
