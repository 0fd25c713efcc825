"""What a server says before it can do anything: it is alive, it is not ready, and how far it has come.

It stands where the app will stand, for a start that takes long. Who connected meanwhile is passed on to the app once
that is there.
"""

from collections.abc import Callable

from driftq.errors import NotReadyError
from driftq.http.answer import Answer
from driftq.http.errors import error_reply
from driftq.http.prometheus import CONTENT_TYPE, counter, encode, gauge
from driftq.http.reply import Reply, json_reply
from driftq.http.request import Request
from driftq.http.v1.errors import error_reply as broker_error_reply
from driftq.http.v1.form import labelled
from driftq.server import Server

_RETRY_MS = 1000


class Threshold:
    """Answers in the app's place."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.behind: Callable[[Request], Answer] | None = None
        """The app, once there is one."""

    def handle(self, request: Request) -> Answer:
        """The answer to a request."""
        if self.behind is not None:
            return self.behind(request)
        if request.method in ("GET", "HEAD"):
            if request.path in ("/v0/health", "/healthz"):
                return json_reply(200, self._server.health())
            if request.path == "/v0/metrics":
                return self._metrics()
        progress = self._server.replay_progress
        error = NotReadyError(
            "the log is being read again", detail={"replay_progress": progress}, retry_after_ms=_RETRY_MS
        )
        if request.path.startswith("/v0/") or request.path == "/readyz":
            return error_reply(error)
        return labelled(request, broker_error_reply(error), self._server.entropy)

    def _metrics(self) -> Reply:
        families = [
            gauge("driftq_ready", "Whether requests are taken.", 0),
            gauge(
                "driftq_recovery_progress",
                "How much of the log has been read again, from 0 to 1.",
                self._server.replay_progress,
            ),
            counter("driftq_uptime_ms", "Milliseconds since the start.", self._server.health().uptime_ms),
        ]
        return Reply(200, encode(families), CONTENT_TYPE)
