"""Logs requests: refusals, failures, slow requests, and with `--access-log` every request.

| event | level | how often |
|---|---|---|
| answer 401, 403 or 429 | warning | one line per reason and minute, with a count |
| any other answer 4xx | info | one line per reason and minute, with a count |
| answer 5xx | error for 500, else warning | every one, up to `EACH_MAX` per reason and minute |
| answer after more than `--slow-request-ms` | warning | every one, up to `EACH_MAX` per minute |
| every answer, with `--access-log` | info | every one |

The reason of a refusal is its error code and the limit it names. Long polls and streams never count as slow, because
their callers asked to wait. No line contains a query (it may hold a key), a header or a body.
"""

import asyncio
import logging
from typing import Any

from msgspec import DecodeError, json

from driftq.http.answer import StreamAnswer, Upgrade
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.request_id import id_of
from driftq.model.units import NS_PER_MS
from driftq.system.clock import Clock
from driftq.system.log_facts import Fact, facts
from driftq.system.log_repeats import Repeats
from driftq.system.runtime import Runtime

EACH_MAX = 1000
"""Number of lines per reason and minute that are logged one by one; further ones are only counted."""
NEVER_NS = 1 << 62
"""Longer than any request takes, in ns."""
_PATH_CHARS_MAX = 200
_AUTHENTICATION = (401, 403)
_WARNED = (*_AUTHENTICATION, 429)

_log = logging.getLogger("driftq.http")
_access = logging.getLogger("driftq.access")


class RequestLog:
    """Writes the log lines about the requests of one listener."""

    def __init__(
        self, runtime: Runtime, clock: Clock | None = None, *, slow_ms: int = 0, access_log: bool = False
    ) -> None:
        """Without a clock, or with `slow_ms=0`, no request counts as slow."""
        self._repeats = Repeats(runtime, _log)
        self._now_ns = None if clock is None else clock.monotonic_ns
        self._slow_ns = slow_ms * NS_PER_MS if slow_ms else NEVER_NS
        self._access = access_log

    def answered(
        self, request: Request, answer: Reply | StreamAnswer | Upgrade, transport: asyncio.BaseTransport | None = None
    ) -> None:
        """Log an answer if it is worth a line. Called when the answer is known, before it is compressed and sent."""
        took_ns = self._now_ns() - request.began_ns if request.began_ns and self._now_ns is not None else 0
        status = 101 if isinstance(answer, Upgrade) else answer.status
        if status >= 400:
            self._refused(request, answer, status, took_ns, transport)
        elif took_ns > self._slow_ns and not request.waits and isinstance(answer, Reply):
            named = _named(request, status, took_ns, transport)
            self._repeats.note("slow", logging.WARNING, "slow request", named, most=EACH_MAX)
        if self._access:
            size = answer.size if isinstance(answer, Reply) else None
            _access.info("request", extra=facts(**_named(request, status, took_ns, transport), bytes=size))

    def close(self) -> None:
        """Log the counts that wait for the end of their minute."""
        self._repeats.flush()

    def _refused(
        self,
        request: Request,
        answer: Reply | StreamAnswer | Upgrade,
        status: int,
        took_ns: int,
        transport: asyncio.BaseTransport | None,
    ) -> None:
        code, limit, message = _verdict(answer)
        named: dict[str, Fact] = {"reason": code, "limit": limit, **_named(request, status, took_ns, transport)}
        reason = f"{status} {code} {limit or ''}"
        if status >= 500:
            level = logging.ERROR if status == 500 else logging.WARNING
            self._repeats.note(reason, level, "request failed", named | {"error": message}, most=EACH_MAX)
            return
        what = "authentication failed" if status in _AUTHENTICATION else "requests refused"
        self._repeats.note(reason, logging.WARNING if status in _WARNED else logging.INFO, what, named)


def _named(request: Request, status: int, took_ns: int, transport: asyncio.BaseTransport | None) -> dict[str, Fact]:
    key = request.access.key_id
    return {
        "request_id": id_of(request).decode("ascii"),
        "method": request.method or None,
        "path": request.path[:_PATH_CHARS_MAX],
        "status": status,
        "ms": round(took_ns / NS_PER_MS, 3) if took_ns else None,
        "key": key + 1 if key is not None and key >= 0 else None,
        "peer": _peer(transport),
    }


def _peer(transport: asyncio.BaseTransport | None) -> str | None:
    address = None if transport is None else transport.get_extra_info("peername")
    if not isinstance(address, tuple) or len(address) < 2:
        return None
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def _verdict(answer: Reply | StreamAnswer | Upgrade) -> tuple[str, str | None, str | None]:
    """Return code, limit and message of an error body of either API."""
    body: Any = None
    if isinstance(answer, Reply):
        try:
            body = json.decode(answer.body)
        except DecodeError:
            body = None
    body = body if isinstance(body, dict) else {}
    error = body.get("error")
    if isinstance(error, dict):  # http-v0 §1.5
        detail = error.get("detail")
        limit = detail.get("limit") if isinstance(detail, dict) else None
        return _text(error.get("code")) or "unknown", _text(limit), _text(error.get("message"))
    return _text(error) or "unknown", _text(body.get("limit")), _text(body.get("message"))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
