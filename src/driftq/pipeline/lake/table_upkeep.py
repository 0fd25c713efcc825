"""Upkeep of the tables of a lake: merging small files, erasing rows, and making a table ready to be filled again.

All of it is safe beside a running archive and beside readers: each step is one commit of Delta, and a file that no
version needs any more is removed only after a retention.

Invariant: the count and checksum of a topic (`lake.table_progress`) change in the commit that changes its rows.
"""

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.lake import table_progress as marks
from driftq.pipeline.lake.delta_tables import Lake, LakeTable
from driftq.pipeline.lake.row_sums import RowSum, by_topic, hashes, sum_of
from driftq.pipeline.lake.table_layout import DAY
from driftq.system.clock import SystemClock

FILE_BYTES = 128 << 20
"""Size to which files are merged."""
_SMALL = FILE_BYTES // 2
_HOUR_MS = 3_600_000
_TRIES = 20


class Compacted(NamedTuple):
    """What a compaction did to one table."""

    table: str
    files_before: int
    files_after: int
    removed: int
    """Number of files that were replaced before the retention, and are removed now."""


def compact(lake: Lake, table: LakeTable, *, retain_hours: float) -> Compacted:
    """Merge the small files of a table, ordered by seq, and remove files that were replaced before the retention."""
    before = len(table.files())
    delta = DeltaTable(table.path)
    for day in _days_with_small_files(delta):
        # Another writer that has rewritten the same files, such as `erase`, wins; the next run merges the rest.
        with suppress(CommitFailedError):
            filters = [(DAY, "=", day)] if day else None
            delta.optimize.z_order(["seq"], partition_filters=filters, target_size=FILE_BYTES)
    delta = DeltaTable(table.path)
    delta.create_checkpoint()
    delta.cleanup_metadata()
    gone = delta.vacuum(int(retain_hours), dry_run=False, enforce_retention_duration=False)
    return Compacted(str(table.path.relative_to(lake.root)), before, len(table.files()), len(gone))


def remove_leftovers(lake: Lake, *, retain_hours: float) -> int:
    """Remove files of tasks that no commit has added for so long. Returns their number."""
    end = SystemClock().wall_ms() / 1000 - retain_hours * _HOUR_MS / 1000
    old = [path for path in lake.staged.glob("*") if path.stat().st_mtime < end]
    for path in old:
        path.unlink(missing_ok=True)
    return len(old)


def _days_with_small_files(delta: DeltaTable) -> list[str]:
    """Return the days that have at least two files below half of the target size; "" for a table without days."""
    counts: dict[str, int] = {}
    for row in pa.table(delta.get_add_actions(flatten=True)).to_pylist():
        if row["size_bytes"] < _SMALL:
            day = str(row.get(f"partition.{DAY}") or "")
            counts[day] = counts.get(day, 0) + 1
    return sorted(day for day, count in counts.items() if count > 1)


def erase(table: LakeTable, tag: str, topics: Collection[str]) -> dict[str, int]:
    """Delete the rows of these topics that have a tag. Returns how many there were, by topic."""
    named = ", ".join(map(_quoted, sorted(topics)))
    for _ in range(_TRIES):
        delta = DeltaTable(table.path)
        rows = table.read(where=(ds.field("tag") == tag) & ds.field("topic").isin(sorted(topics)))
        if not len(rows):
            return {}
        if DeltaTable(table.path).version() != delta.version():
            continue  # a commit came between, and its rows may have been read
        gone, counts = _sums(delta, rows), dict.fromkeys(topics, 0)
        for topic, _, found in by_topic(rows):
            counts[topic] += len(found)
        try:
            delta.delete(
                f"tag = {_quoted(tag)} AND topic IN ({named})",
                commit_properties=CommitProperties(app_transactions=marks.without(delta, gone)),
            )
        except CommitFailedError:
            continue
        return {topic: count for topic, count in counts.items() if count}
    raise PipelineError(f"{table.path.name} changed {_TRIES} times while rows were erased from it: run erase again")


def _sums(delta: DeltaTable, rows: pa.Table) -> dict[tuple[str, int], RowSum]:
    """Return count and checksum of the counted rows, by topic and epoch."""
    found: dict[tuple[str, int], RowSum] = {}
    for topic, epoch, some in by_topic(rows):
        counted = some.filter(pc.greater(some["seq"], marks.counted(delta, topic, epoch).since))
        found[topic, epoch] = found.get((topic, epoch), RowSum()).plus(sum_of(hashes(counted)))
    return found


class Reset(NamedTuple):
    """What a table still has of a topic after `reset`: rows, and how many of its files could not be read."""

    kept: int
    unreadable: int


def reset(table: LakeTable, topic: str, epoch: int, earliest: int) -> Reset:
    """Remove the rows that the live topic still has, so that an archive writes them again, and keep all others.

    The live topic has `epoch` and its records from `earliest` on. Rows in files that are missing or damaged are lost.
    A file that cannot be read for another reason raises OSError, and nothing is changed.
    """
    if not table.exists():
        return Reset(0, 0)
    delta, unreadable = DeltaTable(table.path), 0
    kept = [table.schema.empty_table()]
    for path in table.files():
        try:
            rows = table.dataset([path]).to_table()
        except (FileNotFoundError, pa.ArrowInvalid):
            unreadable += 1
            continue
        except OSError as error:
            if error.errno is not None:
                raise  # the disk, not the content: it may be readable later
            unreadable += 1
            continue
        again = pc.and_(pc.equal(rows["epoch"], epoch), pc.greater_equal(rows["seq"], earliest))
        mine = pc.equal(rows["topic"], topic)
        kept.append(rows.filter(pc.and_(mine, pc.invert(again))))
    whole = pa.concat_tables(kept)
    shared = {name for name, _ in table.recorded()} - {topic}
    write_deltalake(
        delta,
        whole.cast(table.schema),
        mode="overwrite",
        predicate=f"topic = {_quoted(topic)}" if shared else None,
        commit_properties=CommitProperties(app_transactions=[*_entries(table, topic, epoch, earliest, whole)]),
    )
    return Reset(len(whole), unreadable)


def _entries(table: LakeTable, topic: str, epoch: int, earliest: int, kept: pa.Table) -> Iterator[Transaction]:
    """Yield the entries of a topic whose rows are exactly these: its mark, and their count and checksum."""
    sums = {found: sum_of(hashes(rows)) for _, found, rows in by_topic(kept)}
    for name, known in table.recorded():
        if name == topic:
            mark = min(table.mark(topic, known), earliest - 1) if known == epoch else table.mark(topic, known)
            yield from marks.restated(topic, known, mark, sums.get(known, RowSum()))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
