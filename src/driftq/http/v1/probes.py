"""`/v1/healthz` and `/v1/version` (http-v1 §3.1, §3.2)."""

from importlib.metadata import PackageNotFoundError, distribution

from msgspec import DecodeError, Struct, json

from driftq import __version__
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v1.replies import json_reply
from driftq.server import Server

UNKNOWN = "unknown"
"""What a build that does not say is called."""


class _Repository(Struct, frozen=True):
    commit_id: str = ""


class _Origin(Struct, frozen=True):
    vcs_info: _Repository = _Repository()


def commit_of(origin: str | None) -> str:
    """The commit in a package's `direct_url.json` (PEP 610), as installers note what is from a repository."""
    try:
        found = json.decode(origin or "{}", type=_Origin)
    except DecodeError:
        return UNKNOWN
    return found.vcs_info.commit_id or UNKNOWN


def build_commit() -> str:
    """The commit of the package that is installed."""
    try:
        return commit_of(distribution("driftq").read_text("direct_url.json"))
    except PackageNotFoundError:
        return UNKNOWN


class BrokerProbeEndpoints:
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
