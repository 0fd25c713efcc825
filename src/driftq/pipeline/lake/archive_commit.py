"""What tasks have written becomes part of tables: one commit per table, each with the batch it belongs to.

Each commit moves the table's marks of the topics that it brings (`lake.marks`); what the table has is left out before.
Records come last, so what was lost or cannot be read is noted when their mark says that a range is settled.

Invariant: what is told of a batch is committed in one go per table, so a table has a batch whole or not at all.

Over Spark Connect this runs in the server, where it has come by value: no structs of msgspec, which do not.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake.transaction import AddAction
from msgspec import json

from driftq.pipeline.lake.delta_tables import Lake, LakeTable, WriterBatch
from driftq.pipeline.lake.parquet_parts import ArchivedGap, ParquetPart, Places
from driftq.pipeline.lake.table_layout import BAD_RECORDS, DAY, GAPS
from driftq.pipeline.lake.table_progress import Move
from driftq.pipeline.offsets import OffsetRange


class PartReport(NamedTuple):
    """What the tasks of a batch have told."""

    parts: dict[str, list[ParquetPart]]
    gaps: list[ArchivedGap]


class CommittedBatch(NamedTuple):
    """What a batch brought."""

    rows: int
    bad: int
    gaps: int


class CommitPlan(NamedTuple):
    """What a batch brings to the tables, by topic."""

    parts: Mapping[str, OffsetRange]
    tables: Mapping[str, LakeTable]
    records: Mapping[str, Move]
    bad: Mapping[str, Move]


def plan_batch(lake: Lake, parts: Mapping[str, OffsetRange], tables: Mapping[str, LakeTable]) -> CommitPlan:
    """What a batch that reads these ranges brings to tables that may have some of it."""
    records: dict[str, Move] = {}
    for table, own in _by_table(tables, parts).values():
        records |= table.moves(parts[topic] for topic in own)
    return CommitPlan(parts, tables, records, _bad(lake).moves(parts.values(), _anew(records)))


def places_of(lake: Lake, plan: CommitPlan) -> Places:
    """The same for tasks, which have nothing but paths and numbers."""
    return Places(
        {topic: str(table.path) for topic, table in plan.tables.items()},
        str(_bad(lake).path),
        {topic: part.epoch for topic, part in plan.parts.items()},
        {topic: move.cut for topic, move in plan.records.items()},
        {topic: move.cut for topic, move in plan.bad.items()},
        {topic: part.missed.epoch for topic, part in plan.parts.items() if part.missed is not None},
    )


def read_told(lines: Iterable[str]) -> PartReport:
    """Files by table, and gaps."""
    parts: dict[str, list[ParquetPart]] = defaultdict(list)
    gaps: list[ArchivedGap] = []
    for line in lines:
        facts = json.decode(line, type=dict[str, Any])
        if "gap_from" in facts:
            gaps.append(ArchivedGap(**facts))
        else:
            part = ParquetPart(**facts)
            parts[part.table].append(part)
    return PartReport(dict(parts), gaps)


def commit_parts(
    lake: Lake, plan: CommitPlan, lines: Iterable[str], batch: WriterBatch, *, seen_ms: int
) -> CommittedBatch:
    """Commit all that the tasks of a batch have told. What was committed before is not again."""
    told = read_told(lines)
    gaps = _commit_gaps(lake, plan, told.gaps, batch, seen_ms)
    bad = told.parts.get(str(_bad(lake).path), [])
    if bad or _anew(plan.bad):
        _bad(lake).add([_action(part) for part in bad], batch, list(plan.bad.values()))
    rows = 0
    for path, (table, own) in _by_table(plan.tables, plan.parts).items():
        parts, moves = told.parts.get(path, []), [plan.records[topic] for topic in own]
        if parts or any(move.anew for move in moves):  # a mark of an earlier life goes back though no row comes with it
            table.add([_action(part) for part in parts], batch, moves)
            rows += sum(part.rows for part in parts)
    return CommittedBatch(rows, sum(part.rows for part in bad), gaps)


def _anew(moves: Mapping[str, Move]) -> set[str]:
    """Topics that go on below what their tables have of them: what is bad or lost there is new, too."""
    return {topic for topic, move in moves.items() if move.anew}


def _bad(lake: Lake) -> LakeTable:
    return lake.table("bad_records", BAD_RECORDS)


def _by_table(tables: Mapping[str, LakeTable], topics: Iterable[str]) -> dict[str, tuple[LakeTable, list[str]]]:
    """Tables by their paths, each with the topics that go there."""
    found: dict[str, tuple[LakeTable, list[str]]] = {}
    for topic in topics:
        table = tables[topic]
        found.setdefault(str(table.path), (table, []))[1].append(topic)
    return found


def _commit_gaps(lake: Lake, plan: CommitPlan, gaps: list[ArchivedGap], batch: WriterBatch, seen_ms: int) -> int:
    if not gaps:
        return 0
    table = lake.table("gaps", GAPS)
    told = [plan.parts[topic] for topic in dict.fromkeys(gap.topic for gap in gaps)]
    moves = table.moves(told, _anew(plan.records))
    new = [left for gap in gaps if (left := _left(plan, moves[gap.topic], gap)) is not None]
    if new:
        table.append(_gap_rows(new, seen_ms), batch, list(moves.values()))
    return len(new)


def _left(plan: CommitPlan, move: Move, gap: ArchivedGap) -> ArchivedGap | None:
    """What of a gap nobody has told yet, and no query has archived before it was lost."""
    if gap.epoch == move.epoch:
        known = max(move.cut, plan.records[gap.topic].cut)
    else:
        known = plan.tables[gap.topic].mark(gap.topic, gap.epoch)
    first = max(gap.gap_from, known + 1)
    if gap.gap_to < gap.gap_from:  # the end of a life, wherever it was
        return gap._replace(gap_from=first, gap_to=first - 1)
    return gap._replace(gap_from=first) if first <= gap.gap_to else None


def _action(part: ParquetPart) -> AddAction:
    stats = {"numRecords": part.rows, "minValues": {"seq": part.first_seq}, "maxValues": {"seq": part.last_seq}}
    values = {DAY: part.day} if part.day else {}
    return AddAction(part.path, part.bytes, values, part.written_ms, True, json.encode(stats).decode())


def _gap_rows(gaps: list[ArchivedGap], seen_ms: int) -> pa.Table:
    columns = {name: [getattr(gap, name) for gap in gaps] for name in GAPS.names[:-1]}
    return pa.table({**columns, "seen_ts": pa.array([seen_ms * 1000] * len(gaps), GAPS.field("seen_ts").type)}, GAPS)
