"""The columns of the archive's tables, and the names of their directories.

Invariant: a column that was written once stays, with its type and meaning. A table may get more columns.
"""

import re
from hashlib import sha256

import pyarrow as pa

_PLAIN = re.compile(rb"[a-z0-9._-]")
_LENGTH_MAX = 200
_HEAD = 120


def directory_name(name: str) -> str:
    """Return the directory name for a topic, table or job. The name must not be empty."""
    assert name, "the name is empty"
    raw = name.encode()
    text = "".join(chr(byte) if _PLAIN.fullmatch(raw, at, at + 1) else f"~{byte:02x}" for at, byte in enumerate(raw))
    if text[0] in "._":
        text = f"~{ord(text[0]):02x}{text[1:]}"
    if len(text) <= _LENGTH_MAX:
        return text
    return f"{text[:_HEAD]}~~{sha256(raw).hexdigest()}"


_TEXT = pa.string()
_TIME = pa.timestamp("us", tz="UTC")
_META = pa.map_(_TEXT, _TEXT)

DAY = "day"
"""Partition column of tables of records: the UTC day of `ts`."""

RECORDS = pa.schema(
    [
        ("topic", _TEXT),
        ("epoch", pa.int64()),
        ("seq", pa.int64()),
        ("ts", _TIME),
        ("node", _TEXT),
        ("tag", _TEXT),
        ("meta", _META),
        ("data", _TEXT),
        (DAY, pa.date32()),
    ]
)
"""Records as they were in their topic. `epoch` distinguishes a topic from an earlier one with the same name."""

BAD_RECORDS = pa.schema([*(field for field in RECORDS if field.name != DAY), pa.field("problem", _TEXT)])
"""Records whose data is not what their topic promises, stored unchanged."""

GAPS = pa.schema(
    [
        ("topic", _TEXT),
        ("epoch", pa.int64()),
        ("gap_from", pa.int64()),
        ("gap_to", pa.int64()),
        ("reason", _TEXT),
        ("seen_ts", _TIME),
    ]
)
"""Ranges of seqs that were lost before the archive could read them, as the server reported them."""

ERASURES = pa.schema(
    [
        ("topic", _TEXT),
        ("selector", _TEXT),
        ("at", _TIME),
        ("caller", _TEXT),
        ("live_records", pa.int64()),
        ("lake_rows", pa.int64()),
    ]
)
"""Erasures: which records were deleted on request, when, by whom, and how many in the topic and in the lake."""
