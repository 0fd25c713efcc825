"""Checks that an archive is what was written, and that it equals its topics in the range that both have.

Two comparisons find different things:

1. A table with itself. Each commit has stored how many rows the table has of each incarnation of a topic, and their
   checksum (`lake.row_sums`). So changed, lost and added rows are found, also those that only the lake still has.
2. A table with the live topic, seq by seq and value by value. Records that retention has removed from the topic, also
   during the check, exist only in the archive; this is not a difference. The same is true for rows of an earlier topic
   of the same name, which have a different epoch.

Topics are those of the tables, of their transaction logs, and of the checkpoints of archives, so a table that was
emptied or removed is a difference. Memory: 16 bytes per row on either side.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from json import loads
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from msgspec import Struct
from numpy.typing import NDArray

from driftq.pipeline.lake.delta_tables import Lake, LakeTable
from driftq.pipeline.lake.lake_owner import owner_of, told
from driftq.pipeline.lake.row_sums import SUMMED, RowSum, by_topic, hashes, sum_of
from driftq.pipeline.lake.seq_sets import Seqs
from driftq.pipeline.lake.table_layout import BAD_RECORDS
from driftq.pipeline.spark.query_checkpoint import last_ends

_RANGES_TOLD = 5


class TopicExtent(NamedTuple):
    """Range of a topic when the check starts. Seqs above `head` are ignored, so a growing topic can be checked."""

    epoch: int
    earliest: int
    head: int
    server_id: str | None = None


class Live(Protocol):
    """The calls to the server that the check needs."""

    def standing(self, topic: str) -> TopicExtent | None:
        """Return the range of a topic, or None if it does not exist."""
        ...

    def pages(self, topic: str, first: int, last: int) -> Iterator[pa.Table]:
        """Yield the records from `first` to `last`, page by page."""
        ...


class ArchiveFinding(Struct, frozen=True):
    """Result of the check for one topic."""

    topic: str
    verdict: Literal["equal", "differs"]
    lake_rows: int
    live_rows: int
    lake_seqs: str
    live_seqs: str
    differences: list[str]


class _Rows:
    """The seqs of some rows, and the hash of each row."""

    def __init__(self) -> None:
        self.seqs = Seqs()
        self._pieces: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []

    def add(self, seqs: NDArray[np.int64], found: list[int]) -> None:
        self.seqs.add(seqs)
        self._pieces.append((seqs, np.array(found, np.int64)))

    def differing(self, other: "_Rows") -> Seqs:
        """Return the seqs that both have, with different rows."""
        if not self._pieces or not other._pieces:
            return Seqs()
        mine, theirs = self._joined(), other._joined()
        both, here, there = np.intersect1d(mine[0], theirs[0], return_indices=True)
        unlike = Seqs()
        unlike.add(both[mine[1][here] != theirs[1][there]])
        return unlike

    def _joined(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return np.concatenate([seqs for seqs, _ in self._pieces]), np.concatenate([sums for _, sums in self._pieces])


class _Held:
    """What the lake has: rows and marks by topic and epoch, and problems by topic."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], _Rows] = defaultdict(_Rows)
        self.read_to: dict[tuple[str, int], int] = {}
        self.problems: dict[str, list[str]] = defaultdict(list)
        self.tables: dict[str, list[LakeTable]] = defaultdict(list)

    def topics(self) -> list[str]:
        """Return all topics of which the lake has, or should have, anything."""
        return sorted({topic for topic, _ in (*self.rows, *self.read_to)})

    def take(self, table: LakeTable, where: str) -> None:
        """Read a table, and compare it with what its commits have recorded."""
        recorded = table.recorded()
        sums: dict[tuple[str, int], RowSum] = dict.fromkeys(recorded, RowSum())
        below: dict[str, Seqs] = defaultdict(Seqs)
        since: dict[tuple[str, int], int] = {}
        for path in table.files():
            try:
                batches = list(table.dataset([path]).to_batches(columns=["topic", "epoch", *SUMMED]))
            except (OSError, pa.ArrowException) as error:
                for topic in sorted({topic for topic, _ in recorded}):
                    self.problems[topic].append(f"{where} has a file that cannot be read: {error}")
                continue
            for topic, epoch, rows in (found for batch in batches for found in by_topic(batch)):
                seqs, found = rows["seq"].to_numpy(zero_copy_only=False).astype(np.int64), hashes(rows)
                self.rows[topic, epoch].add(seqs, found)
                below[topic].add(seqs[seqs < 1])
                if (topic, epoch) not in since:
                    since[topic, epoch] = table.counted(topic, epoch).since
                counted = sum_of(value for seq, value in zip(seqs, found, strict=True) if seq > since[topic, epoch])
                sums[topic, epoch] = sums.get((topic, epoch), RowSum()).plus(counted)
        for (topic, epoch), now in sums.items():
            if table not in self.tables[topic]:
                self.tables[topic].append(table)
            self.read_to[topic, epoch] = max(self.read_to.get((topic, epoch), 0), recorded.get((topic, epoch), 0))
            self.problems[topic] += _unlike(where, epoch, now, table.counted(topic, epoch).sum)
        for topic, seqs in below.items():
            if len(seqs):
                self.problems[topic].append(f"{where} has rows with seqs that no topic has: {_told(seqs)}")


def _unlike(where: str, epoch: int, now: RowSum, then: RowSum) -> Iterator[str]:
    if now.rows != then.rows:
        yield f"{where} has {now.rows} counted rows of epoch {epoch}, and {then.rows} were written"
    elif now != then:
        yield f"{where} has other rows of epoch {epoch} than were written: their checksum differs"


def verify(lake: Lake, live: Live, topics: Iterable[str] | None = None, *, deep: bool = False) -> list[ArchiveFinding]:
    """Compare these topics, or all topics of the lake, with the server. With `deep`, name the columns that differ."""
    held = _held(lake)
    owner = owner_of(lake)
    wanted = held.topics() if topics is None else list(topics)
    return [_compare(topic, held, live, owner, deep=deep) for topic in wanted]


def _held(lake: Lake) -> _Held:
    held = _Held()
    for table in lake.archives():
        held.take(table, str(table.path.relative_to(lake.root)))
    held.take(lake.table("bad_records", BAD_RECORDS), "bad_records")
    known = {topic for topic, _ in held.read_to}
    for checkpoint in sorted((lake.root / "_checkpoints").glob("archive-*")):
        for topic, end in last_ends(checkpoint).items():
            if end.seq <= 0:
                continue
            held.read_to[topic, end.epoch] = max(held.read_to.get((topic, end.epoch), 0), end.seq)
            if topic not in known:
                known.add(topic)
                held.problems[topic].append(f"no table has this topic, which was archived up to seq {end.seq}")
    return held


def _compare(topic: str, held: _Held, live: Live, owner: str | None, *, deep: bool) -> ArchiveFinding:
    standing = live.standing(topic)
    problems = held.problems.get(topic, [])
    rows = sum(len(rows.seqs) for (name, _), rows in held.rows.items() if name == topic)
    if standing is None:
        return _other(topic, rows, ["there is no such topic on the server", *problems])
    if owner is not None and standing.server_id not in (None, owner):
        return _other(topic, rows, [told(owner, standing.server_id), *problems])
    there = _Rows()
    values: list[str] = []
    for page in live.pages(topic, standing.earliest, standing.head):
        there.add(page["seq"].to_numpy().astype(np.int64), hashes(page))
        if deep:
            values += _values(topic, page, held.tables[topic], standing.epoch)
    # Records that retention removes during the check are missing here, but were not deleted.
    after = live.standing(topic)
    if after is None or after.epoch != standing.epoch:
        return _other(topic, rows, ["the topic was deleted during the comparison; verify again", *problems])
    here = held.rows.get((topic, standing.epoch), _Rows())
    first = max(standing.earliest, after.earliest)
    archived = here.seqs
    common, found = archived.between(first, standing.head), there.seqs.between(first, standing.head)
    end = max(held.read_to.get((topic, standing.epoch), 0), archived.ranges[-1].last if archived.ranges else 0)
    differences = [*problems, *_differences(archived, common, found, end)]
    unlike = here.differing(there).between(first, standing.head)
    if len(unlike):
        differences.append(f"{len(unlike)} rows differ from the live records: seq {_told(unlike)}")
    differences += values[:_RANGES_TOLD]
    return ArchiveFinding(
        topic,
        "differs" if differences else "equal",
        len(common),
        len(found),
        _span(common),
        _span(found),
        differences,
    )


def _values(topic: str, page: pa.Table, tables: list[LakeTable], epoch: int) -> Iterator[str]:
    """Yield which columns of which rows differ from the records of a page."""
    if not len(page):
        return
    records = {row["seq"]: row for row in map(_plain, page.select(SUMMED).to_pylist())}
    place = (ds.field("epoch") == epoch) & (ds.field("seq") >= min(records)) & (ds.field("seq") <= max(records))
    for table in tables:
        found = table.dataset().to_table(columns=["topic", *SUMMED], filter=place).to_pylist()
        for row in map(_plain, found):
            record = records.get(row["seq"]) if row["topic"] == topic else None
            names = [name for name in SUMMED if record is not None and record[name] != row[name]]
            if names:
                yield f"seq {row['seq']}: {', '.join(names)} differ"


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    meta = row["meta"]
    return row | {"meta": None if meta is None else loads(meta) if isinstance(meta, str) else dict(meta)}


def _other(topic: str, rows: int, why: list[str]) -> ArchiveFinding:
    return ArchiveFinding(topic, "differs", rows, 0, "", "", why)


def _differences(archived: Seqs, common: Seqs, found: Seqs, end: int) -> Iterator[str]:
    missing = found.without(archived)
    behind = missing.between(end + 1, 1 << 62)
    missing = missing.between(0, end)
    extra = common.without(found)
    if archived.repeated:
        yield f"{archived.repeated} rows are in the lake more than once"
    if len(missing):
        yield f"{len(missing)} live records are not in the lake: seq {_told(missing)}"
    if len(behind):
        yield f"the lake is {len(behind)} records behind: seq {_told(behind)}"
    if len(extra):
        yield f"{len(extra)} rows of the lake are no longer live (deleted since): seq {_told(extra)}"


def _span(seqs: Seqs) -> str:
    ranges = seqs.ranges
    return f"{ranges[0].first}-{ranges[-1].last}" if ranges else ""


def _told(seqs: Seqs) -> str:
    ranges = seqs.ranges
    more = f" and {len(ranges) - _RANGES_TOLD} more ranges" if len(ranges) > _RANGES_TOLD else ""
    return ", ".join(map(str, ranges[:_RANGES_TOLD])) + more
