"""Builds the error envelope of http-v0 §1.5 with the status of each error code (§1.6). Only this module does."""

import logging
from collections.abc import Mapping

from driftq.errors import DriftQError, UnauthorizedError
from driftq.http.reply import Reply, json_reply
from driftq.http.request import Request
from driftq.http.request_id import id_of
from driftq.model.units import MS_PER_S
from driftq.system.log_facts import facts

_log = logging.getLogger(__name__)

_STATUS = {
    "invalid_request": 400,
    "batch_too_large": 400,
    "record_too_large": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "topic_not_found": 404,
    "router_not_found": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "not_acceptable": 406,
    "router_cycle": 409,
    "topic_exists_incompatible": 409,
    "topic_not_empty": 409,
    "not_a_queue": 409,
    "read_only": 409,
    "stage_incomplete": 409,
    "epoch_mismatch": 409,
    "failed_precondition": 409,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "topic_full": 422,
    "throttled": 429,
    "internal": 500,
    "not_ready": 503,
    "shutting_down": 503,
    "disk_full": 507,
    "wal_stopped": 503,
    "segment_unavailable": 503,
    "cold_unavailable": 503,
}


def refusal(
    code: str,
    message: str,
    *headers: tuple[bytes, bytes],
    detail: Mapping[str, object] | None = None,
    status: int | None = None,
) -> Reply:
    """Return an error envelope. Its status is that of `code`, unless `status` gives a more exact one."""
    error: dict[str, object] = {"code": code, "message": message}
    if detail is not None:
        error["detail"] = detail
    return json_reply(status or _STATUS[code], {"error": error}, *headers)


def error_reply(error: DriftQError) -> Reply:
    """Return the reply to a request that failed with this error."""
    headers = []
    if error.retry_after_ms is not None:
        seconds = max(1, -(-error.retry_after_ms // MS_PER_S))
        headers.append((b"retry-after", b"%d" % seconds))
    if isinstance(error, UnauthorizedError):
        headers.append((b"www-authenticate", b"Bearer"))
    return refusal(error.code, error.message, *headers, detail=error.detail)


def failed_reply(request: Request, error: BaseException) -> Reply:
    """Return the reply to a request that failed with any error. A bug is logged; its reply is only `internal`."""
    if isinstance(error, DriftQError):
        return error_reply(error)
    named = facts(request_id=id_of(request).decode("ascii"))
    _log.error("%s %s failed", request.method, request.path, exc_info=error, extra=named)
    return refusal("internal", "internal server error; see the server log")
