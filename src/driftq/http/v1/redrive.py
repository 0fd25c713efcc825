"""The handlers of redrive (http-v1 §22): start a job or count what it would move, report its state, cancel it."""

from typing import Any

from msgspec import Struct
from msgspec.json import Decoder

from driftq.errors import InvalidRequestError
from driftq.features.broker.redrive import Filter, RunningRedrive
from driftq.http.access import Scope
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v1.params import I64, check_name, only_body, stripped
from driftq.http.v1.replies import json_reply
from driftq.server import Server
from driftq.system.runtime import Pending

_PATH = "/v1/dlq/redrive"
_OFFSETS_MAX = 10_000


class RedriveFilterBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The filter of a redrive; an absent field matches every dead letter."""

    tenant_id: str | None = None
    reason_contains: str | None = None
    run_id: str | None = None
    before_ms: I64 | None = None
    after_ms: I64 | None = None


class RedriveBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a redrive: which dead letters move back, and how fast."""

    topic: str | None = None
    filter: RedriveFilterBody | None = None
    limit: I64 | None = None
    rate_per_s: int | float | None = None
    dry_run: bool | None = None
    group: str | None = None
    offsets: list[I64] | None = None
    """Offsets in the dead-letter topic: only these dead letters move."""


class Redrive:
    """Starts, reports and cancels redrive jobs: the handlers of `/v1/dlq/redrive`."""

    def __init__(self, server: Server) -> None:
        self._redriver = server.redriver
        self._body_bytes_max = server.settings.limits.body_bytes_max
        self._decoder = Decoder(RedriveBody)

    def routes(self) -> list[Route]:
        """Return the routes of redrive."""
        return [
            Route("POST", _PATH, self.start, Scope.ADMIN),
            Route("GET", f"{_PATH}/:job", self.show, Scope.ADMIN),
            Route("DELETE", f"{_PATH}/:job", self.cancel, Scope.ADMIN),
        ]

    def start(self, request: Request) -> Pending[Reply]:
        """Start to move dead letters back; with `dry_run`, only count them."""
        given = only_body(self._decoder, request, self._body_bytes_max)
        topic = stripped(given.topic)
        if not topic:
            raise InvalidRequestError("topic is required")
        check_name(request, topic)
        asked = self._redriver.ask(
            topic,
            _filter(given.filter or RedriveFilterBody(), _offsets(given.offsets)),
            group=stripped(given.group) or None,
            limit=given.limit,
            rate_per_s=given.rate_per_s,
            dry_run=bool(given.dry_run),
        )
        return asked.mapped(_started)

    def show(self, request: Request) -> Reply:
        """Report the state of a job."""
        return json_reply(200, _shown(self._job(request)))

    def cancel(self, request: Request) -> Reply:
        """Cancel a job: it moves no further dead letters."""
        return json_reply(200, _shown(self._redriver.cancel(self._job(request).id)))

    def _job(self, request: Request) -> RunningRedrive:
        job = self._redriver.job(request.params[0])
        check_name(request, job.topic)
        return job


def _filter(chosen: RedriveFilterBody, offsets: list[int] | None) -> Filter:
    tenant_id = None if chosen.tenant_id is None else stripped(chosen.tenant_id)
    run_id = None if chosen.run_id is None else stripped(chosen.run_id)
    return Filter(tenant_id, chosen.reason_contains, run_id, chosen.before_ms, chosen.after_ms, offsets)


def _offsets(given: list[int] | None) -> list[int] | None:
    if given is not None and not (0 < len(given) <= _OFFSETS_MAX and min(given) >= 0):
        raise InvalidRequestError(f"offsets must be 1 to {_OFFSETS_MAX} numbers >= 0")
    return given


def _started(asked: RunningRedrive | int) -> Reply:
    if isinstance(asked, int):
        return json_reply(200, {"matched": asked})
    return json_reply(202, {"job_id": asked.id, "matched": asked.matched})


def _shown(job: RunningRedrive) -> dict[str, Any]:
    return {
        "state": job.state,
        "matched": job.matched,
        "moved": job.moved,
        "failed": job.failed,
        "rate": job.rate,
        "started_ms": job.started_ms,
    }
