"""Checks that an archive equals its topics, seq by seq, in the range that both have.

The check compares live records from the topic's first seq on. Records that retention has removed from the topic, also
during the check, exist only in the archive; this is not a difference. The same is true for rows of an earlier topic of
the same name, which have a different epoch.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple, Protocol

import numpy as np
import pyarrow.compute as pc
from msgspec import Struct
from numpy.typing import NDArray

from driftq.pipeline.lake.delta_tables import Lake, LakeTable
from driftq.pipeline.lake.lake_owner import owner_of, told
from driftq.pipeline.lake.seq_sets import Seqs
from driftq.pipeline.lake.table_layout import BAD_RECORDS

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

    def seqs(self, topic: str, first: int, last: int) -> Iterator[NDArray[np.int64]]:
        """Yield the seqs of the records from `first` to `last`, page by page."""
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


def verify(lake: Lake, live: Live, topics: Iterable[str] | None = None) -> list[ArchiveFinding]:
    """Compare these topics, or all topics of the lake, with the server."""
    held = _held(lake)
    owner = owner_of(lake)
    wanted = sorted({topic for topic, _ in held}) if topics is None else list(topics)
    return [_compare(topic, held, live, owner) for topic in wanted]


def _held(lake: Lake) -> dict[tuple[str, int], Seqs]:
    """Return the archived seqs by topic and epoch, including records in `bad_records`."""
    held: dict[tuple[str, int], Seqs] = defaultdict(Seqs)
    for table in [*lake.archives(), lake.table("bad_records", BAD_RECORDS)]:
        _count(table, held)
    return held


def _count(table: LakeTable, held: dict[tuple[str, int], Seqs]) -> None:
    for batch in table.dataset().to_batches(columns=["topic", "epoch", "seq"]):
        for topic in pc.unique(batch["topic"]).to_pylist():
            named = batch.filter(pc.equal(batch["topic"], topic))
            for epoch in pc.unique(named["epoch"]).to_pylist():
                seqs = named.filter(pc.equal(named["epoch"], epoch))["seq"]
                held[topic, epoch].add(seqs.to_numpy(zero_copy_only=False).astype(np.int64))


def _compare(topic: str, held: dict[tuple[str, int], Seqs], live: Live, owner: str | None) -> ArchiveFinding:
    standing = live.standing(topic)
    rows = sum(len(seqs) for (name, _), seqs in held.items() if name == topic)
    if standing is None:
        return _other(topic, rows, "there is no such topic on the server")
    if owner is not None and standing.server_id not in (None, owner):
        return _other(topic, rows, told(owner, standing.server_id))
    found = Seqs()
    for page in live.seqs(topic, standing.earliest, standing.head):
        found.add(page)
    # Records that retention removes during the check are missing here, but were not deleted.
    after = live.standing(topic)
    if after is None or after.epoch != standing.epoch:
        return _other(topic, rows, "the topic was deleted during the comparison; verify again")
    archived = held.get((topic, standing.epoch), Seqs())
    first = max(standing.earliest, after.earliest)
    common, found = archived.between(first, standing.head), found.between(first, standing.head)
    differences = list(_differences(archived, common, found))
    return ArchiveFinding(
        topic,
        "differs" if differences else "equal",
        len(common),
        len(found),
        _span(common),
        _span(found),
        differences,
    )


def _other(topic: str, rows: int, why: str) -> ArchiveFinding:
    return ArchiveFinding(topic, "differs", rows, 0, "", "", [why])


def _differences(archived: Seqs, common: Seqs, found: Seqs) -> Iterator[str]:
    end = archived.ranges[-1].last if archived.ranges else 0
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
