"""Deadlines (http-v1 §3.5): RFC 3339 with a zone, and the moment it means.

date "T" hh:mm:ss [ "." 1 to 9 digits ] ( "Z" | ±hh:mm )
"""

import re
from datetime import UTC, datetime, timedelta, timezone

from driftq.errors import InvalidRequestError

_GRAMMAR = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|([+-])([01]\d|2[0-3]):([0-5]\d))", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_MS_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MS


def deadline_ms(text: str, name: str = "deadline") -> int:
    """The millisecond behind which it is over: a fraction of one counts as a whole. Raises InvalidRequestError."""
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise InvalidRequestError(f"invalid {name}")
    fraction = match[2] or ""
    shift = timedelta(0) if match[3] is None else timedelta(hours=int(match[4]), minutes=int(match[5]))
    try:
        whole = datetime.fromisoformat(match[1]).replace(tzinfo=timezone(-shift if match[3] == "-" else shift))
    except ValueError:
        raise InvalidRequestError(f"invalid {name}") from None
    return (whole - _EPOCH) // _MS + -(-int(fraction.ljust(9, "0")) // 1_000_000)


def deadline_text(ms: int, name: str = "deadline_ms") -> str:
    """A moment as it is stored. Raises InvalidRequestError."""
    if not 0 <= ms <= _MS_MAX:
        raise InvalidRequestError(f"invalid {name}")
    return (_EPOCH + ms * _MS).isoformat(timespec="milliseconds")
