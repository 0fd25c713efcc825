"""The id of a request: what its answer, the log and the caller call it (`x-request-id`).

A caller may name its request with 1 to 128 printable ASCII characters, without spaces and quotes. Any other name is
replaced: an id goes into heads and log lines as it is. Without a name the id is 24 hex digits, 12 of the process and
12 that count. Every answer has it, on both APIs, so a fresh one must cost next to nothing.
"""

import re
from itertools import count

from driftq.http.request import Request
from driftq.system.entropy import SystemEntropy

NAME = b"x-request-id"

PROCESS = SystemEntropy().token(6).hex().encode()
"""What every fresh id of this process begins with."""
next_number = count(16**11).__next__
"""Counts requests; the number has 12 hex digits without being padded."""

_GIVEN = re.compile(rb"[!#-&(-~]{1,128}")


def fresh() -> bytes:
    """Return an id that no other request has."""
    return b"%b%x" % (PROCESS, next_number())


def id_of(request: Request) -> bytes:
    """Return the id of a request: the caller's if it can be used, else a fresh one, the same at every call."""
    if not request.request_id:
        request.request_id = _given(request.header(NAME)) or fresh()
    return request.request_id


def _given(value: bytes | None) -> bytes | None:
    value = None if value is None else value.strip()
    return value if value is not None and _GIVEN.fullmatch(value) else None
