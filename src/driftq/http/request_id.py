"""Request ids: each answer and log line carries the id of its request (`x-request-id`).

A caller may choose the id: 1 to 128 printable ASCII characters without spaces and quotes. Any other value is replaced,
because an id is written into heads and log lines without escaping. A generated id has 24 hex digits: 12 that identify
the process and 12 that count. Every answer of both APIs has an id, so generating one must be cheap.
"""

import re
from itertools import count

from driftq.http.request import Request
from driftq.system.entropy import SystemEntropy

NAME = b"x-request-id"

PROCESS = SystemEntropy().token(6).hex().encode()
"""The first 12 hex digits of every id that this process generates."""
next_number = count(16**11).__next__
"""Return the next request number; it starts so high that it always has 12 hex digits."""

_GIVEN = re.compile(rb"[!#-&(-~]{1,128}")


def fresh() -> bytes:
    """Return a new id that no other request has."""
    return b"%b%x" % (PROCESS, next_number())


def id_of(request: Request) -> bytes:
    """Return the id of a request: the caller's if it is valid, else a generated one. Every call returns the same id."""
    if not request.request_id:
        request.request_id = _given(request.header(NAME)) or fresh()
    return request.request_id


def _given(value: bytes | None) -> bytes | None:
    value = None if value is None else value.strip()
    return value if value is not None and _GIVEN.fullmatch(value) else None
