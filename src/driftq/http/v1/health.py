"""`/v1/healthz` and `/v1/version` (http-v1 §3.1, §3.2)."""

from driftq import __version__
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v1.build import build_commit
from driftq.http.v1.form import json_reply
from driftq.server import Server


class Health:
    """The handlers."""

    def __init__(self, server: Server) -> None:
        durable = server.settings.broker.durability != "ephemeral"
        facts = {"version": __version__ or "dev", "commit": build_commit(), "wal_enabled": durable}
        self._version = json_reply(200, facts)
        self._health = json_reply(200, {"status": "ok"})

    def routes(self) -> list[Route]:
        """Both need no key."""
        return [
            Route("GET", "/v1/healthz", self.health, probe=True),
            Route("GET", "/v1/version", self.version, probe=True),
        ]

    def health(self, _: Request) -> Reply:
        """Always the same."""
        return self._health

    def version(self, _: Request) -> Reply:
        """What this is."""
        return self._version
