"""Answers requests while the server starts: health, readiness, and the progress of recovery.

The listener uses this object in place of the app during a long start. Once the app exists, all requests are passed to
it, also those of connections made earlier. The endpoints here need the same keys as they do in the app.
"""

from driftq.errors import DriftQError, NotReadyError, UnauthorizedError
from driftq.http.access import NOTHING, Scope
from driftq.http.answer import Answer
from driftq.http.app import App
from driftq.http.keys import ApiKeys
from driftq.http.metrics.prometheus_text import CONTENT_TYPE, counter, encode, gauge
from driftq.http.reply import Reply, json_reply
from driftq.http.request import Request
from driftq.http.v0.errors import error_reply
from driftq.http.v1.errors import error_reply as broker_error_reply
from driftq.http.v1.replies import plain
from driftq.server import Server

_RETRY_MS = 1000
_HEALTH = ("/v0/health", "/healthz")
_READY = ("/v0/ready", "/readyz")
_METRICS = "/v0/metrics"


class StartingApp:
    """Answers requests until the app exists, then passes them to it."""

    def __init__(self, server: Server, keys: ApiKeys | None = None) -> None:
        self._server = server
        self._keys = keys or ApiKeys()
        self.behind: App | None = None
        """The app; None until the start is complete."""

    def handle(self, request: Request) -> Answer:
        """Return the answer to a request."""
        if self.behind is not None:
            return self.behind.handle(request)
        told = request.path in (*_HEALTH, *_READY, _METRICS)
        if told and request.method in ("GET", "HEAD"):
            try:
                return self._tell(request)
            except DriftQError as error:
                return error_reply(error)
        if told or request.path.startswith("/v0/"):
            return error_reply(self._not_ready())
        return plain(broker_error_reply(self._not_ready()))

    def _tell(self, request: Request) -> Reply:
        """Return health or metrics of the starting server; readiness raises NotReadyError."""
        if request.path == _METRICS:
            self._check(request, Scope.READ)
            return self._metrics(request)
        if self._server.settings.probe_auth:
            self._check(request, NOTHING)
        if request.path in _READY:
            raise self._not_ready()
        return json_reply(200, self._server.health())

    def _check(self, request: Request, needed: Scope) -> None:
        """Raise UnauthorizedError or ForbiddenError if the server has keys and the request's key lacks `needed`."""
        if not self._keys:
            return
        access = self._keys.who(request, form_token=False)
        if access is None:
            raise UnauthorizedError("missing or unknown API key; send `Authorization: Bearer <key>`")
        access.check(needed)

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
