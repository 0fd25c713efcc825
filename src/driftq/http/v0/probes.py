"""The probes (http-v0 §17)."""

from driftq.http.reply import Reply, json_reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.server import Server


class ProbeEndpoints:
    """Whether the process answers, and whether it takes requests."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def routes(self) -> list[Route]:
        """Both, each under its two names."""
        return [
            Route("GET", "/v0/health", self.health, probe=True),
            Route("GET", "/healthz", self.health, probe=True),
            Route("GET", "/v0/ready", self.ready, probe=True),
            Route("GET", "/readyz", self.ready, probe=True),
        ]

    def health(self, _: Request) -> Reply:
        """Always the same."""
        return json_reply(200, self._server.health())

    def ready(self, _: Request) -> Reply:
        """How it stands."""
        return json_reply(200, self._server.readiness())
