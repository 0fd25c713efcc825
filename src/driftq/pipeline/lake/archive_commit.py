"""Adds files that tasks have written to the tables: one commit per table, which carries the number of the batch.

Each commit moves the table's mark of each topic that it has rows of, and adds their count and checksum
(`lake.table_progress`). Rows that the table
already has are left out before. Records are committed last, so losses and unreadable records are stored before the mark
shows that a range is complete.

Invariant: everything of a batch for one table is in one commit, so a table has a batch completely or not at all.

With Spark Connect this code runs in the Connect server, pickled by value. So it uses no msgspec structs, which cannot
be pickled by value.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake.transaction import AddAction
from msgspec import json

from driftq.pipeline.lake.delta_tables import Lake, LakeTable, WriterBatch
from driftq.pipeline.lake.parquet_parts import ArchivedGap, ParquetPart, Places
from driftq.pipeline.lake.row_sums import RowSum
from driftq.pipeline.lake.table_layout import BAD_RECORDS, DAY, GAPS
from driftq.pipeline.lake.table_progress import Move
from driftq.pipeline.offsets import OffsetRange


class PartReport(NamedTuple):
    """Reports of the tasks of a batch: files by table, and gaps."""

    parts: dict[str, list[ParquetPart]]
    gaps: list[ArchivedGap]


class CommittedBatch(NamedTuple):
    """What a batch added: rows, unreadable records and gaps."""

    rows: int
    bad: int
    gaps: int


class CommitPlan(NamedTuple):
    """The ranges, tables and marks of a batch, by topic."""

    parts: Mapping[str, OffsetRange]
    tables: Mapping[str, LakeTable]
    records: Mapping[str, Move]
    bad: Mapping[str, Move]


def plan_batch(lake: Lake, parts: Mapping[str, OffsetRange], tables: Mapping[str, LakeTable]) -> CommitPlan:
    """Return the plan of a batch that reads these ranges, with the marks of tables that may have a part of them."""
    records: dict[str, Move] = {}
    for table, own in _by_table(tables, parts).values():
        records |= table.moves(parts[topic] for topic in own)
    return CommitPlan(parts, tables, records, _bad(lake).moves(parts.values(), _anew(records)))


def places_of(lake: Lake, plan: CommitPlan) -> Places:
    """Return the plan in the form for tasks: paths and numbers only."""
    return Places(
        {topic: str(table.path) for topic, table in plan.tables.items()},
        str(_bad(lake).path),
        {topic: part.epoch for topic, part in plan.parts.items()},
        {topic: move.cut for topic, move in plan.records.items()},
        {topic: move.cut for topic, move in plan.bad.items()},
        {topic: part.missed.epoch for topic, part in plan.parts.items() if part.missed is not None},
        str(lake.staged),
        {topic: plan.tables[topic].counted(topic, part.epoch).since for topic, part in plan.parts.items()},
        {topic: _bad(lake).counted(topic, part.epoch).since for topic, part in plan.parts.items()},
    )


def read_told(lines: Iterable[str]) -> PartReport:
    """Return files by table, and gaps, from the JSON lines of the tasks."""
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
    """Commit what the tasks of a batch have reported. Parts that were committed before are not committed again."""
    told = read_told(lines)
    gaps = _commit_gaps(lake, plan, told.gaps, batch, seen_ms)
    bad = told.parts.get(str(_bad(lake).path), [])
    if bad or _anew(plan.bad):
        actions = [_action(part) for part in bad]
        _bad(lake).add(actions, batch, list(plan.bad.values()), _sums(bad), staged=lake.staged)
    rows = 0
    for path, (table, own) in _by_table(plan.tables, plan.parts).items():
        parts, moves = told.parts.get(path, []), [plan.records[topic] for topic in own]
        # A mark of an earlier incarnation moves back. A first one shows `verify` that there was a table.
        if parts or any(move.anew or (not move.found and move.end) for move in moves):
            table.add([_action(part) for part in parts], batch, moves, _sums(parts), staged=lake.staged)
            rows += sum(part.rows for part in parts)
    return CommittedBatch(rows, sum(part.rows for part in bad), gaps)


def _anew(moves: Mapping[str, Move]) -> set[str]:
    """Return the topics whose seqs restart below their mark. Unreadable records and losses there are new, too."""
    return {topic for topic, move in moves.items() if move.anew}


def _bad(lake: Lake) -> LakeTable:
    return lake.table("bad_records", BAD_RECORDS)


def _by_table(tables: Mapping[str, LakeTable], topics: Iterable[str]) -> dict[str, tuple[LakeTable, list[str]]]:
    """Return the tables by path, each with the topics that it stores."""
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
    """Return the part of a gap that is not stored yet and was not archived before the loss, or None."""
    if gap.epoch == move.epoch:
        known = max(move.cut, plan.records[gap.topic].cut)
    else:
        known = plan.tables[gap.topic].mark(gap.topic, gap.epoch)
    first = max(gap.gap_from, known + 1)
    if gap.gap_to < gap.gap_from:  # this gap marks the end of an incarnation, at an unknown seq
        return gap._replace(gap_from=first, gap_to=first - 1)
    return gap._replace(gap_from=first) if first <= gap.gap_to else None


def _sums(parts: Iterable[ParquetPart]) -> dict[str, RowSum]:
    """Return count and checksum of the rows of some files, by topic."""
    found: dict[str, RowSum] = {}
    for part in parts:
        for topic, (rows, total) in part.sums.items():
            found[topic] = found.get(topic, RowSum()).plus(RowSum(rows, total))
    return found


def _action(part: ParquetPart) -> AddAction:
    stats = {
        "numRecords": part.rows,
        "minValues": {"seq": part.first_seq, "ts": part.first_ts},
        "maxValues": {"seq": part.last_seq, "ts": part.last_ts},
        "nullCount": {"seq": 0, "ts": 0},
    }
    values = {DAY: part.day} if part.day else {}
    return AddAction(part.path, part.bytes, values, part.written_ms, True, json.encode(stats).decode())


def _gap_rows(gaps: list[ArchivedGap], seen_ms: int) -> pa.Table:
    columns = {name: [getattr(gap, name) for gap in gaps] for name in GAPS.names[:-1]}
    return pa.table({**columns, "seen_ts": pa.array([seen_ms * 1000] * len(gaps), GAPS.field("seen_ts").type)}, GAPS)
