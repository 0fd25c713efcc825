"""The handlers of `/v1/healthz` and `/v1/version` (http-v1 §3.1, §3.2)."""

from importlib.metadata import PackageNotFoundError, distribution

from msgspec import DecodeError, Struct, json

from driftq import __version__
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v1.replies import json_reply
from driftq.server import Server

UNKNOWN = "unknown"
"""The commit of a build that does not record one."""


class _Repository(Struct, frozen=True):
    commit_id: str = ""


class _Origin(Struct, frozen=True):
    vcs_info: _Repository = _Repository()


def commit_of(origin: str | None) -> str:
    """Return the commit in a package's `direct_url.json` (PEP 610), which installers write for repository installs."""
    try:
        found = json.decode(origin or "{}", type=_Origin)
    except DecodeError:
        return UNKNOWN
    return found.vcs_info.commit_id or UNKNOWN


def build_commit() -> str:
    """Return the commit of the installed package."""
    try:
        return commit_of(distribution("driftq").read_text("direct_url.json"))
    except PackageNotFoundError:
        return UNKNOWN


class BrokerProbeEndpoints:
    """The handlers of health and version."""

    def __init__(self, server: Server) -> None:
        durable = server.settings.broker.durability != "ephemeral"
        facts = {"version": __version__ or "dev", "commit": build_commit(), "wal_enabled": durable}
        self._version = json_reply(200, facts)
        self._health = json_reply(200, {"status": "ok"})

    def routes(self) -> list[Route]:
        """Return the routes of health and version, which need no key."""
        return [
            Route("GET", "/v1/healthz", self.health, probe=True),
            Route("GET", "/v1/version", self.version, probe=True),
        ]

    def health(self, _: Request) -> Reply:
        """Report that the process answers."""
        return self._health

    def version(self, _: Request) -> Reply:
        """Report version, commit and whether broker data is durable."""
        return self._version
