"""The exceptions that a client raises, as one tree. Statuses and codes are those of http-v0 §1.6 and http-v1 §1.4.

ClientError
├── TransportError      no complete answer came: connection refused or broken, or a timeout
├── ClosedError         the client was closed, before the call or while it waited
├── ProtocolError       the answer is not one of a DriftQ server
├── ConfigDiffersError  `create` found a topic that exists with another config
└── ApiError            the server refused: `status`, `code`, `message`, `detail`, `retry_after`
    ├── BadRequestError     400, 405, 406, 413, 414, 415, 431: the call itself is wrong; a retry does not help
    ├── UnauthorizedError   401
    ├── ForbiddenError      403
    ├── NotFoundError       404
    ├── ConflictError       409: the call does not fit the current state of the server
    │   └── LeaseLostError      the caller no longer holds the lease of a delivery or a key
    ├── TopicFullError      422
    ├── ThrottledError      429: the same call may succeed later
    └── ServerError         500 and above
        ├── UnavailableError    503: the server is starting or stopping, or accepts no writes
        └── DiskFullError       507: the server's disk is full; nothing was stored, and a retry may succeed later
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from msgspec import MsgspecError
from msgspec.json import decode

from driftq.model.units import MS_PER_S
from driftq.model.v1_answers import EntryResult


class ClientError(Exception):
    """Base class of every exception that a client raises on purpose."""


class TransportError(ClientError):
    """No complete answer came. `sent` is False if the request cannot have reached the server."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class ClosedError(ClientError):
    """The client was closed. A call that was waiting for its answer may or may not have had an effect."""


class ProtocolError(ClientError):
    """The answer does not have the form that a DriftQ server sends."""


class ConfigDiffersError(ClientError):
    """The topic exists, and a setting that was passed to `create` has another value there. Nothing was changed.

    `differences` maps the name of each setting to its current value and the requested value.
    """

    def __init__(self, topic: str, differences: Mapping[str, tuple[Any, Any]]) -> None:
        found = ", ".join(f"{field}={there!r} instead of {asked!r}" for field, (there, asked) in differences.items())
        super().__init__(f"topic {topic!r} exists with {found}; change it with update() or replace()")
        self.topic = topic
        self.differences = differences


class ApiError(ClientError):
    """The server refused the call. `retry_after` is in seconds; None if the server gave no time."""

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
    """The call itself is wrong; making it again does not help."""


class UnauthorizedError(ApiError):
    """The API key is missing or unknown to the server."""


class ForbiddenError(ApiError):
    """The API key does not allow this call, or not for this topic name."""


class NotFoundError(ApiError):
    """The topic, router, cursor, run or route does not exist."""


class ConflictError(ApiError):
    """The call does not fit the current state of the server."""


class LeaseLostError(ConflictError):
    """The caller no longer holds a delivery or a key: its lease ended, or a restart of the server dropped it."""


class TopicFullError(ApiError):
    """The topic is full, and its config makes it reject writes."""


class ThrottledError(ApiError):
    """A limit was reached or a queue is full; the same call may succeed later."""


class ServerError(ApiError):
    """The server failed; the call may or may not have had an effect."""


class UnavailableError(ServerError):
    """The server is starting or shutting down, or has stopped accepting writes."""


class DiskFullError(ServerError):
    """The disk of the server is full. Nothing of the call was stored; the same call may succeed later."""


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
"""Messages of the broker API that mean a lost lease; the contract fixes these texts (http-v1 §1.4)."""


def api_error(status: int, headers: Mapping[str, str], content: bytes, *, now: datetime | None = None) -> ApiError:
    """Return the exception for an answer of `/v0` or `/v1` that reports a failure."""
    try:
        body = decode(content, type=dict[str, Any])
    except MsgspecError:
        body = {}
    reported, detail = body.get("error"), None
    if isinstance(reported, dict):
        code, message, detail = str(reported.get("code")), str(reported.get("message")), reported.get("detail")
    elif isinstance(reported, str):
        code, message = reported, str(body.get("message"))
        detail = {name: value for name, value in body.items() if name not in ("error", "message")}
    else:
        code, message = "unknown", content[:200].decode(errors="replace") or "the answer has no body"
    return _kind(status, message)(
        status, code, message, detail=detail, retry_after=_retry_after(headers, detail or {}, now)
    )


def refused(result: EntryResult) -> ApiError:
    """Return the exception for one entry of a batch that the server refused."""
    detail = {"reason": result.reason, "retry_after_ms": result.retry_after_ms, "limit": result.limit}
    after_s = result.retry_after_ms / MS_PER_S if result.retry_after_ms else None
    known = {name: value for name, value in detail.items() if value}
    return _kind(result.code, result.message)(
        result.code, result.error, result.message, detail=known, retry_after=after_s
    )


def _kind(status: int, message: str) -> type[ApiError]:
    if message in _LOST:
        return LeaseLostError
    return _KINDS.get(status, ServerError if status >= 500 else BadRequestError)


def _retry_after(headers: Mapping[str, str], detail: Mapping[str, Any], now: datetime | None) -> float | None:
    """Return the seconds to wait: from the body, which has milliseconds, else from the header, a number or a date."""
    after_ms = detail.get("retry_after_ms")
    if isinstance(after_ms, int):
        return after_ms / MS_PER_S
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
