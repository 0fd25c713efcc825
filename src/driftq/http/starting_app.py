"""Answers requests while the server starts: health, readiness, and the progress of recovery.

The listener uses this object in place of the app during a long start. Once the app exists, all requests are passed to
it, also those of connections made earlier. The endpoints here need the same keys as they do in the app.
"""

from driftq.errors import DriftQError, NotReadyError
from driftq.http.access import Scope
from driftq.http.answer import Answer
from driftq.http.app import App
from driftq.http.gate import Gate
from driftq.http.keys import ApiKeys
from driftq.http.metrics.prometheus_text import CONTENT_TYPE, counter, encode, gauge
from driftq.http.reply import Reply, json_reply
from driftq.http.request import Request
from driftq.http.routes import Route, RouteTable
from driftq.http.v0.errors import error_reply
from driftq.http.v1.errors import error_reply as broker_error_reply
from driftq.http.v1.replies import plain
from driftq.server import Server

_RETRY_MS = 1000


class StartingApp:
    """Answers requests until the app exists, then passes them to it."""

    def __init__(self, server: Server, keys: ApiKeys | None = None) -> None:
        self._server = server
        self._gate = Gate(server, keys or ApiKeys(), open_probes=not server.settings.probe_auth)
        self._table = RouteTable(
            [
                *(Route("GET", path, self._health, probe=True) for path in ("/v0/health", "/healthz")),
                *(Route("GET", path, self._ready, probe=True) for path in ("/v0/ready", "/readyz")),
                Route("GET", "/v0/metrics", self._metrics, Scope.READ, always=True),
            ]
        )
        self.app: App | None = None
        """The app; None until the start is complete."""

    def handle(self, request: Request) -> Answer:
        """Return the answer to a request."""
        if self.app is not None:
            return self.app.handle(request)
        found = self._table.find(request.path)
        if found is None and not request.path.startswith("/v0/"):
            return plain(broker_error_reply(self._not_ready()))
        try:
            if found is None or request.method not in ("GET", "HEAD"):
                raise self._not_ready()
            route = found.routes["GET"]
            return self._gate.answer(request, route, found, lambda *_: route.handler(request))
        except DriftQError as error:
            return error_reply(error)

    def _health(self, _: Request) -> Reply:
        return json_reply(200, self._server.health())

    def _ready(self, _: Request) -> Reply:
        raise self._not_ready()

    def _not_ready(self) -> NotReadyError:
        progress = self._server.replay_progress
        return NotReadyError(
            "the server is starting: recovery is reading the log",
            detail={"replay_progress": progress},
            retry_after_ms=_RETRY_MS,
        )

    def _metrics(self, request: Request) -> Reply:
        progress, uptime_ms = self._server.replay_progress, self._server.health().uptime_ms
        if b"application/json" in (request.header(b"accept") or b""):
            return json_reply(200, {"ready": False, "replay_progress": progress, "uptime_ms": uptime_ms})
        families = [
            gauge("driftq_ready", "Whether the server accepts requests.", 0),
            gauge("driftq_recovery_progress", "Part of the log that recovery has read, from 0 to 1.", progress),
            counter("driftq_uptime_ms", "Milliseconds since the start.", uptime_ms),
        ]
        return Reply(200, encode(families), CONTENT_TYPE)
