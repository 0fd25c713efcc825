"""What tasks have written becomes part of tables: one commit per table, each with the batch it belongs to.

Invariant: what is told of a batch is committed in one go per table, so a table has a batch whole or not at all.

Over Spark Connect this runs in the server, where it has come by value: no structs of msgspec, which do not.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake.transaction import AddAction
from msgspec import json

from driftq.pipeline.lake.lake import Batch, Lake, Table
from driftq.pipeline.lake.parts import Gap, Part
from driftq.pipeline.lake.schemas import BAD_RECORDS, DAY, GAPS, RECORDS


class Told(NamedTuple):
    """What the tasks of a batch have told."""

    parts: dict[str, list[Part]]
    gaps: list[Gap]


class Committed(NamedTuple):
    """What a batch brought."""

    rows: int
    bad: int
    gaps: int


def read_told(lines: Iterable[str]) -> Told:
    """Files by table, and gaps."""
    parts: dict[str, list[Part]] = defaultdict(list)
    gaps: list[Gap] = []
    for line in lines:
        facts = json.decode(line, type=dict[str, Any])
        if "gap_from" in facts:
            gaps.append(Gap(**facts))
        else:
            part = Part(**facts)
            parts[part.table].append(part)
    return Told(dict(parts), gaps)


def commit_parts(lake: Lake, lines: Iterable[str], batch: Batch, *, seen_ms: int) -> Committed:
    """Commit all that the tasks of a batch have told. What was committed before is not again."""
    told = read_told(lines)
    bad_path = str(lake.root / "bad_records")
    rows = bad = 0
    for path, parts in told.parts.items():
        count = sum(part.rows for part in parts)
        if path == bad_path:
            lake.table("bad_records", BAD_RECORDS).add([_action(part) for part in parts], batch)
            bad += count
        else:
            Table(Path(path), RECORDS, by=[DAY]).add([_action(part) for part in parts], batch)
            rows += count
    if told.gaps:
        lake.table("gaps", GAPS).append(_gap_rows(told.gaps, seen_ms), batch)
    return Committed(rows, bad, len(told.gaps))


def _action(part: Part) -> AddAction:
    stats = {"numRecords": part.rows, "minValues": {"seq": part.first_seq}, "maxValues": {"seq": part.last_seq}}
    values = {DAY: part.day} if part.day else {}
    return AddAction(part.path, part.bytes, values, part.written_ms, True, json.encode(stats).decode())


def _gap_rows(gaps: list[Gap], seen_ms: int) -> pa.Table:
    columns = {name: [getattr(gap, name) for gap in gaps] for name in GAPS.names[:-1]}
    return pa.table({**columns, "seen_ts": pa.array([seen_ms * 1000] * len(gaps), GAPS.field("seen_ts").type)}, GAPS)
