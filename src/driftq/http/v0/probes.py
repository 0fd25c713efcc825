"""Health and readiness probes (http-v0 §17)."""

from driftq.http.reply import Reply, json_reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.server import Server


class ProbeEndpoints:
    """The handlers of the health and readiness probes."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def routes(self) -> list[Route]:
        """Return the routes of both probes, each under two paths."""
        return [
            Route("GET", "/v0/health", self.health, probe=True),
            Route("GET", "/healthz", self.health, probe=True),
            Route("GET", "/v0/ready", self.ready, probe=True),
            Route("GET", "/readyz", self.ready, probe=True),
        ]

    def health(self, _: Request) -> Reply:
        """Report that the process answers; the status is always 200."""
        return json_reply(200, self._server.health())

    def ready(self, _: Request) -> Reply:
        """Report whether the server accepts requests."""
        return json_reply(200, self._server.readiness())
