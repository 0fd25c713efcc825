"""Builds the error body of http-v1 §1.4 with the status of each error. Only this module does."""

import logging

from msgspec import json

from driftq.errors import DriftQError, OverloadedError, ShardStoppedError, ThrottledError, UnauthorizedError
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.request_id import id_of
from driftq.model.units import MS_PER_S
from driftq.system.log_facts import facts

JSON = b"application/json; charset=utf-8"

_log = logging.getLogger(__name__)

_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    408: "INVALID_ARGUMENT",
    409: "FAILED_PRECONDITION",
    413: "INVALID_ARGUMENT",
    414: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    431: "INVALID_ARGUMENT",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
_STATUS = {
    "invalid_request": 400,
    "batch_too_large": 400,
    "topic_not_found": 400,
    "unsupported_media_type": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "failed_precondition": 409,
    "read_only": 409,
    "payload_too_large": 413,
    "record_too_large": 413,
    "topic_full": 429,
    "throttled": 429,
    "not_ready": 503,
    "shutting_down": 503,
    "disk_full": 503,
    "segment_unavailable": 503,
    "cold_unavailable": 503,
}
_RETRY_AFTER = (b"retry-after", b"1")


def refusal(status: int, message: str, *headers: tuple[bytes, bytes], **facts: object) -> Reply:
    """Return an error body; `facts` are additional fields next to code and message."""
    body = {"error": _CODES[status], "message": message, **facts}
    return Reply(status, json.encode(body) + b"\n", JSON, headers)


def error_facts(error: BaseException) -> dict[str, str]:
    """Return the code and message of an error for use inside another answer."""
    status, message = _told(error)
    return {"error": _CODES[status], "message": message}


def entry_failed(request: Request, error: BaseException) -> dict[str, object]:
    """Return the result of one failed entry of a batch: status and body of a single call."""
    status, message = _told(error)
    if not isinstance(error, DriftQError):
        _log_bug(request, error)
    load = _load_facts(error) if isinstance(error, ThrottledError) else {}
    return {"code": status, "error": _CODES[status], "message": message, **load}


def error_reply(error: DriftQError) -> Reply:
    """Return the reply to a request that failed with this error."""
    status, message = _told(error)
    if isinstance(error, ThrottledError):
        return _overloaded(error)
    headers = []
    if status == 503:
        headers.append(_RETRY_AFTER)
    if isinstance(error, UnauthorizedError):
        headers.append((b"www-authenticate", b"Bearer"))
    return refusal(status, message, *headers)


def failed_reply(request: Request, error: BaseException) -> Reply:
    """Return the reply to a request that failed with any error. A bug is logged; its reply is only `INTERNAL`."""
    if isinstance(error, DriftQError):
        return error_reply(error)
    _log_bug(request, error)
    return refusal(*_told(error))


def _log_bug(request: Request, error: BaseException) -> None:
    named = facts(request_id=id_of(request).decode("ascii"))
    _log.error("%s %s failed", request.method, request.path, exc_info=error, extra=named)


def _told(error: BaseException) -> tuple[int, str]:
    """Return the status and the message of an error."""
    if not isinstance(error, DriftQError):
        return 500, "internal server error; see the server log"
    # A stopped log accepts nothing until a restart; a single failed write may be retried.
    status = 503 if isinstance(error, ShardStoppedError) else _STATUS.get(error.code, 500)
    return status, error.message


def _overloaded(error: ThrottledError) -> Reply:
    """Return the 429 for too much load (http-v1 §12)."""
    after_ms = error.retry_after_ms or MS_PER_S
    seconds = max(1, -(-after_ms // MS_PER_S))
    return refusal(429, error.message, (b"retry-after", b"%d" % seconds), **_load_facts(error))


def _load_facts(error: ThrottledError) -> dict[str, object]:
    limit = error.limit if isinstance(error, OverloadedError) else (error.detail or {}).get("limit")
    facts: dict[str, object] = {"reason": "overloaded", "retry_after_ms": error.retry_after_ms or MS_PER_S}
    return facts | ({"limit": limit} if limit else {})
