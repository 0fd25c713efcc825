"""What a client raises, as one tree; statuses and codes are those of http-v0 §1.6 and http-v1 §1.4.

ClientError
├── TransportError      no whole answer came: refused, cut off, too slow
├── ClosedError         the client was closed, before the call or while it waited
├── ProtocolError       an answer that is none of DriftQ's
├── ConfigDiffersError  `create` met a topic that exists with another config
└── ApiError            the server says no: `status`, `code`, `message`, `detail`, `retry_after`
    ├── BadRequestError     400, 405, 406, 413, 414, 415, 431: this call never works as it is
    ├── UnauthorizedError   401
    ├── ForbiddenError      403
    ├── NotFoundError       404
    ├── ConflictError       409: the state of the server does not fit
    │   └── LeaseLostError      a delivery or a key is not the caller's any more
    ├── TopicFullError      422
    ├── ThrottledError      429: the same call may work later
    └── ServerError         500 and above
        ├── UnavailableError    503: it starts, drains, or has stopped taking writes
        └── DiskFullError       507: its disk is full; nothing was kept, and the same call works when there is room
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from msgspec import MsgspecError
from msgspec.json import decode

from driftq.model.v1_answers import EntryResult

_MS_PER_S = 1000


class ClientError(Exception):
    """The base."""


class TransportError(ClientError):
    """No whole answer came. `sent` is False where the server cannot have seen the request."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class ClosedError(ClientError):
    """The client was closed. Whether a call that waited for its answer had an effect is not known."""


class ProtocolError(ClientError):
    """What came back is not what a DriftQ server says."""


class ConfigDiffersError(ClientError):
    """A topic exists, and a setting that `create` was given has another value there. Nothing was changed.

    `differences` has the value in force and the value asked for, by setting.
    """

    def __init__(self, topic: str, differences: Mapping[str, tuple[Any, Any]]) -> None:
        found = ", ".join(f"{field}={there!r} and not {asked!r}" for field, (there, asked) in differences.items())
        super().__init__(f"topic {topic!r} exists with {found}; change it with update(), or with replace()")
        self.topic = topic
        self.differences = differences


class ApiError(ClientError):
    """The server refused. `retry_after` is in seconds, None where the server named no time."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        detail: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.detail: Mapping[str, Any] = detail or {}
        self.retry_after = retry_after


class BadRequestError(ApiError):
    """The call is wrong whatever the state of the server."""


class UnauthorizedError(ApiError):
    """No key, or one the server does not know."""


class ForbiddenError(ApiError):
    """The key may not do this, or not under that name."""


class NotFoundError(ApiError):
    """No such topic, router, cursor, run or route."""


class ConflictError(ApiError):
    """The state of the server does not fit the call."""


class LeaseLostError(ConflictError):
    """A delivery or a key is not the caller's any more: its lease ended, or the server lost it in a restart."""


class TopicFullError(ApiError):
    """A topic that rejects has no room now."""


class ThrottledError(ApiError):
    """A cap or a full queue; the same call may work later."""


class ServerError(ApiError):
    """The server failed; whether the call had an effect is not known."""


class UnavailableError(ServerError):
    """The server starts, drains, or has stopped taking writes."""


class DiskFullError(ServerError):
    """The disk of the server is full. Nothing of the call was kept; the same call works when there is room."""


_KINDS: dict[int, type[ApiError]] = {
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    422: TopicFullError,
    429: ThrottledError,
    503: UnavailableError,
    507: DiskFullError,
}


_LOST = frozenset(("not owner", "message is not in-flight", "idempotency: lease lost or expired"))
"""Texts of the broker API that are stable (http-v1 §1.4)."""


def api_error(status: int, headers: Mapping[str, str], content: bytes, *, now: datetime | None = None) -> ApiError:
    """The error that an answer without success stands for, in either dialect."""
    try:
        body = decode(content, type=dict[str, Any])
    except MsgspecError:
        body = {}
    told, detail = body.get("error"), None
    if isinstance(told, dict):
        code, message, detail = str(told.get("code")), str(told.get("message")), told.get("detail")
    elif isinstance(told, str):
        code, message = told, str(body.get("message"))
        detail = {name: value for name, value in body.items() if name not in ("error", "message")}
    else:
        code, message = "unknown", content[:200].decode(errors="replace") or "an answer without a body"
    return _kind(status, message)(
        status, code, message, detail=detail, retry_after=_retry_after(headers, detail or {}, now)
    )


def refused(result: EntryResult) -> ApiError:
    """Return the error that one entry of a batch got."""
    detail = {"reason": result.reason, "retry_after_ms": result.retry_after_ms, "limit": result.limit}
    after_s = result.retry_after_ms / _MS_PER_S if result.retry_after_ms else None
    known = {name: value for name, value in detail.items() if value}
    return _kind(result.code, result.message)(
        result.code, result.error, result.message, detail=known, retry_after=after_s
    )


def _kind(status: int, message: str) -> type[ApiError]:
    if message in _LOST:
        return LeaseLostError
    return _KINDS.get(status, ServerError if status >= 500 else BadRequestError)


def _retry_after(headers: Mapping[str, str], detail: Mapping[str, Any], now: datetime | None) -> float | None:
    """Seconds: from the body, which knows milliseconds, else from the header, a number or a date."""
    after_ms = detail.get("retry_after_ms")
    if isinstance(after_ms, int):
        return after_ms / _MS_PER_S
    given = headers.get("retry-after", "").strip()
    if given.isdecimal():
        return float(given)
    try:
        until = parsedate_to_datetime(given)
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - (now or datetime.now(UTC))).total_seconds())
