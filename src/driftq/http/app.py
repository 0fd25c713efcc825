"""Every route, and what becomes of an error: the wire's door to a server.

A handler that has its answer returns it; one that waits for a commit returns a `Pending` of it. An error of ours
becomes its envelope; anything else is a bug, is logged with its trace, and shows as `500 internal` and no more.
"""

import logging
from collections.abc import Callable

from driftq.errors import DriftQError
from driftq.http.errors import error_reply, refusal
from driftq.http.reply import Reply, json_reply
from driftq.http.request import Request
from driftq.seam.runtime import Pending
from driftq.server import Server

Answer = Reply | Pending[Reply]
Handler = Callable[[Request], Answer]

_log = logging.getLogger(__name__)


class App:
    """The handlers of one server, by path and method."""

    def __init__(self, server: Server) -> None:
        self._server = server
        health: dict[str, Handler] = {"GET": self._health}
        ready: dict[str, Handler] = {"GET": self._ready}
        self._routes: dict[str, dict[str, Handler]] = {
            "/v0/health": health,
            "/healthz": health,
            "/v0/ready": ready,
            "/readyz": ready,
        }

    def handle(self, request: Request) -> Answer:
        """The answer to a request, or what it will come from. Never raises."""
        try:
            return self._find(request)(request)
        except DriftQError as error:
            return error_reply(error)
        except Exception:  # noqa: BLE001  # a bug in one handler ends one request, not the server
            _log.exception("%s %s failed", request.method, request.path)
            return refusal("internal", "the server made a mistake; its log says more")

    def _find(self, request: Request) -> Handler:
        methods = self._routes.get(request.path)
        if methods is None:
            return _not_found
        # Whoever takes GET takes HEAD: the connection leaves the body out.
        handler = methods.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            allowed = ", ".join([*methods, *(["HEAD"] if "GET" in methods else [])])
            return lambda request: _not_allowed(request, allowed)
        return handler

    def _health(self, _: Request) -> Reply:
        return json_reply(200, self._server.health())

    def _ready(self, _: Request) -> Reply:
        return json_reply(200, self._server.readiness())


def _not_found(request: Request) -> Reply:
    return refusal("not_found", f"there is nothing at {request.path[:200]}")


def _not_allowed(request: Request, allowed: str) -> Reply:
    message = f"{request.path} does not take {request.method}, but {allowed}"
    return refusal("method_not_allowed", message, (b"allow", allowed.encode()))
