"""Divides a range of seqs into splits: which rows are read from which files, and which seqs are lost. Pure functions.

A split is a sequence of pieces; each piece is in one segment file or in none. A piece never contains a hole, so a loss
that the server reports while a piece is read is new. Gaps (evicted, expired, holes) are found here, once, and are the
same whether rows come from files or from the server. Deleted records are not gaps, because a user deleted them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from driftq.pipeline.offsets import TopicOffset


class PlannedSegment(NamedTuple):
    """A sealed segment file of the manifest."""

    tier: str
    file: str
    first: int
    last: int
    live: int


class SeqGap(NamedTuple):
    """Lost seqs and the reason. With `at_most`, it is unknown which of them had a record."""

    first: int
    last: int
    reason: str
    at_most: bool = False

    @property
    def told(self) -> str:
        """The reason as it appears in gap rows."""
        return f"{self.reason}, at most" if self.at_most else self.reason


class TopicFiles(NamedTuple):
    """The server's manifest of a topic: its range and its files (http-v0 §22.2)."""

    topic: str
    epoch: int
    head: int
    earliest: int
    evict_floor: int
    holes: tuple[SeqGap, ...]
    server_id: str
    hot_root: str
    cold_root: str | None
    segments: tuple[PlannedSegment, ...]
    records: int = 0
    """Number of live records in the topic."""
    payload: int = 0
    """Size of the live records in bytes."""
    last_ts: int | None = None
    """Time of the newest record in Unix ms; None if there never was one."""

    @property
    def record_bytes(self) -> int:
        """Average size of a record in bytes."""
        return self.payload // max(1, self.records)


class Piece(NamedTuple):
    """Consecutive seqs, and the segment that has them, if there is one."""

    first: int
    last: int
    segment: PlannedSegment | None


class Split(NamedTuple):
    """The work of one task, small enough to be pickled for each task."""

    topic: str
    epoch: int
    earliest: int
    server_id: str
    hot_root: str
    cold_root: str | None
    pieces: tuple[Piece, ...]
    gaps: tuple[SeqGap, ...]

    @property
    def size(self) -> int:
        """Number of seqs in the split."""
        return sum(piece.last - piece.first + 1 for piece in self.pieces)


def manifest_of(said: Mapping[str, Any]) -> TopicFiles:
    """Return the manifest for the server's JSON."""
    return TopicFiles(
        said["topic"],
        said["epoch"],
        said["head_seq"],
        said["earliest_seq"],
        said["evict_floor"],
        tuple(SeqGap(hole["from"], hole["to"], hole["reason"], hole.get("at_most", False)) for hole in said["holes"]),
        said["server_id"],
        said["hot_root"],
        said["cold_root"],
        tuple(
            PlannedSegment(row["tier"], row["file"], row["first_seq"], row["last_seq"], row["live"])
            for row in said["segments"]
        ),
        said["count"],
        said["bytes"],
        said["last_ts"],
    )


def gaps_in(manifest: TopicFiles, start: int, end: int, evicted: str) -> list[SeqGap]:
    """Return the lost seqs of (start, end]: first those below the floor, with reason `evicted`, then the holes.

    A reader that starts above the evicted seqs also gets the holes below the earliest record: all other seqs there were
    deleted.
    """
    found = []
    at = start
    if start + 1 < manifest.evict_floor and start < end:
        at = manifest.earliest - 1
        found.append(SeqGap(start + 1, min(at, end), evicted))
    for hole in manifest.holes:
        first, last = max(hole.first, at + 1), min(hole.last, end)
        if first <= last:
            found.append(SeqGap(first, last, hole.reason, hole.at_most))
    return [gap for gap in found if gap.first <= gap.last]


def recreated(missed: TopicOffset) -> SeqGap:
    """Return a gap for the unread end of an earlier incarnation. It is empty, because that end is unknown."""
    return SeqGap(missed.seq + 1, missed.seq, "recreated")


def pieces_in(manifest: TopicFiles, start: int, end: int, most: int) -> Iterator[Piece]:
    """Yield the possibly present rows of (start, end], in pieces of at most `most` seqs."""
    at, stop = max(start + 1, manifest.earliest), min(end, manifest.head)
    edges = _edges(manifest)
    for first, last, segment in edges:
        while at <= stop and at <= last:
            begin = max(at, first)
            if begin > stop:
                return
            finish = min(last, stop, begin + most - 1)
            yield Piece(begin, finish, segment)
            at = finish + 1


def present(manifest: TopicFiles, start: int, end: int) -> int:
    """Return how many seqs of (start, end] are not known to be lost."""
    return sum(max(0, min(last, end) - max(first, start + 1) + 1) for first, last, _ in _edges(manifest))


def most_live(manifest: TopicFiles, start: int, end: int) -> int:
    """Return how many live records (start, end] has at most; exact for whole segments and without deletes."""
    outside = manifest.records - sum(segment.live for segment in manifest.segments)
    found = loose = 0
    for first, last, segment in _edges(manifest):
        seqs = max(0, min(last, end) - max(first, start + 1) + 1)
        if segment is None:
            loose += seqs
        else:
            found += min(seqs, segment.live)
    return found + min(loose, max(0, outside))


def reach(manifest: TopicFiles, start: int, end: int, most: int) -> int:
    """Return the last seq of a batch of (start, end] with `most` present seqs, plus the lost seqs right after."""
    for first, last, _ in _edges(manifest):
        begin = max(first, start + 1)
        if begin > min(last, end):
            continue
        if most <= 0:
            return begin - 1
        finish = min(last, end, begin + most - 1)
        most -= finish - begin + 1
        if most <= 0 and finish < min(last, end):
            return finish
    return end


def _edges(manifest: TopicFiles) -> list[tuple[int, int, PlannedSegment | None]]:
    """Return the log from its earliest seq as ranges without holes: segments, and ranges outside of segments."""
    known = sorted(manifest.segments, key=lambda segment: segment.first)
    whole: list[tuple[int, int, PlannedSegment | None]] = []
    at = manifest.earliest
    for segment in known:
        if segment.last < at:
            continue
        if segment.first > at:
            whole.append((at, segment.first - 1, None))
        whole.append((max(at, segment.first), segment.last, segment))
        at = segment.last + 1
    if at <= manifest.head:
        whole.append((at, manifest.head, None))
    return [part for edge in whole for part in _without_holes(edge, manifest.holes)]


def _without_holes(
    edge: tuple[int, int, PlannedSegment | None], holes: Sequence[SeqGap]
) -> Iterator[tuple[int, int, PlannedSegment | None]]:
    first, last, segment = edge
    for hole in holes:
        if hole.last < first or hole.first > last:
            continue
        if hole.first > first:
            yield first, hole.first - 1, segment
        first = hole.last + 1
    if first <= last:
        yield first, last, segment


_SHARED_TOPICS = 250
"""Most splits in one task: each of them may cost the task a request."""


def shared_tasks(splits: Sequence[Split], most: int) -> list[tuple[Split, ...]]:
    """Return the splits of each task: small ones share a task of at most `most` seqs, in their order."""
    tasks: list[list[Split]] = []
    left = 0
    for split in splits:
        if not tasks or split.size > left or len(tasks[-1]) == _SHARED_TOPICS:
            tasks.append([])
            left = most
        tasks[-1].append(split)
        left -= split.size
    return [tuple(task) for task in tasks]


def splits_of(manifest: TopicFiles, start: int, end: int, most: int, gaps: Sequence[SeqGap]) -> list[Split]:
    """Return splits of about `most` seqs each. The first one has the gaps, alone if there are no rows."""
    found: list[list[Piece]] = []
    size = most
    for piece in pieces_in(manifest, start, end, most):
        count = piece.last - piece.first + 1
        if size + count > most:
            found.append([])
            size = 0
        found[-1].append(piece)
        size += count
    if not found and gaps:
        found.append([])
    return [
        Split(
            manifest.topic,
            manifest.epoch,
            manifest.earliest,
            manifest.server_id,
            manifest.hot_root,
            manifest.cold_root,
            tuple(pieces),
            tuple(gaps) if number == 0 else (),
        )
        for number, pieces in enumerate(found)
    ]
