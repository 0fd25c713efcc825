"""Which seqs a replay takes, from where, and in which steps. Pure.

    seqs     from ──────── border ──────── to
             archive        │ live log
             [step  ][step  ][st][ep][step  ]…          each one a batch of one writer, published once

What the live log has is read there, for only there deletes are known; what it has lost is in the archive.

The number of a batch is the last seq of its step, so the writer's last batch says how far the replay is, whatever the
steps were. A step that is too large for one publication is halved, and halves again.

Invariant: the steps of a plan cover its range without overlap, and which of them begins behind a seq depends on nothing
but the plan: two runs of one plan write the same batches.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

from msgspec import Struct, json, structs

from driftq.model.limits import COMMIT_BYTES_MAX
from driftq.pipeline.errors import PipelineError
from driftq.pipeline.lake.seq_sets import Range, Seqs
from driftq.pipeline.source.split_plan import SeqGap

STEP_ROWS = 200_000
_STEP_BYTES = COMMIT_BYTES_MAX // 4
"""Records are not all of one size, so a step aims well below what one publication may have."""
_HOLES = frozenset(("crash", "corruption", "source_trim"))
"""Losses that are holes of the log itself: nobody has these records, and the replay tells of them and goes on."""
_NOT_ARCHIVED = "not archived"


class SeqBounds(NamedTuple):
    """What a log or an archive has of a topic: its first and last seq; nothing if the last is below the first."""

    first: int
    last: int


class Archived(NamedTuple):
    """What an archive has of a topic, and which seqs it was told to be lost."""

    seqs: Seqs
    gaps: tuple[SeqGap, ...] = ()

    @property
    def held(self) -> SeqBounds:
        """From its first seq to its last."""
        ranges = self.seqs.ranges
        return SeqBounds(ranges[0].first, ranges[-1].last) if ranges else SeqBounds(1, 0)


class ReplayRequest(Struct, frozen=True, kw_only=True):
    """What a replay was asked for. The lake is no part of it: it says where records are, not which."""

    topic: str
    from_seq: int | None = None
    to_seq: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    where: str | None = None
    epoch: int | None = None

    def key(self, *more: object) -> str:
        """A short name: the same for the same question."""
        return sha256(json.encode([*structs.astuple(self), *more])).hexdigest()[:16]

    def unlike(self, other: "ReplayRequest") -> str:
        """In which of its options another one differs, as one reads it; nothing where they are the same."""
        mine, theirs = structs.asdict(self), structs.asdict(other)
        return ", ".join(
            f"{name} is {_shown(mine[name])} and not {_shown(theirs[name])}"
            for name in mine
            if mine[name] != theirs[name]
        )


def _shown(value: object) -> str:
    return "not given" if value is None else repr(value)


class ReplayPlan(Struct, frozen=True):
    """A replay, as it was planned. Kept with the destination, so that it can go on."""

    name: str
    """Of the cursor that keeps it."""
    asked: ReplayRequest
    epoch: int
    first: int
    last: int
    border: int
    """From here on the live log is read, before it the archive."""
    step: int

    @property
    def topic(self) -> str:
        """The topic to read."""
        return self.asked.topic

    @property
    def seqs(self) -> int:
        """How many seqs it covers."""
        return max(0, self.last - self.first + 1)

    @property
    def writer(self) -> str:
        """Whose batches the steps are: the same for two plans of one question, so that both know what is written."""
        return f"replay:{self.asked.key(self.name, self.epoch)}"

    def behind(self, seq: int) -> SeqBounds:
        """The step that begins right behind a seq of the range, the largest there is."""
        first = self.first + (seq + 1 - self.first) // self.step * self.step
        part = SeqBounds(first, min(self.last, first + self.step - 1))
        while part.first <= seq:
            left = first_half(part)
            part = left if seq < left.last else SeqBounds(left.last + 1, part.last)
        return part


def first_half(step: SeqBounds) -> SeqBounds:
    """Of a step that is too large; it has more than one seq."""
    assert step.first < step.last, "one seq has no halves"
    return SeqBounds(step.first, (step.first + step.last) // 2)


def step_rows(record_bytes: float) -> int:
    """How many records of about this size a step has at most."""
    return max(1, min(STEP_ROWS, int(_STEP_BYTES / max(record_bytes, 1.0))))


class Wanted(NamedTuple):
    """The range that was asked for; None is as far as there is something."""

    first: int | None
    last: int | None


def bounds(topic: str, wanted: Wanted, live: SeqBounds | None, archive: Archived | None) -> tuple[int, int, int]:
    """First and last seq and the border. Raises PipelineError where the range is not all there to be read."""
    there = (live, archive.held if archive is not None else None)
    known = [held for held in there if held is not None and held.last >= held.first]
    if not known:
        return 1, 0, 1
    first = wanted.first if wanted.first is not None else min(held.first for held in known)
    last = max(held.last for held in known)
    if wanted.last is not None:
        last = min(last, wanted.last)
    border = live.first if live is not None and live.last >= live.first else last + 1
    if archive is None and first < border and wanted.first is not None:
        raise PipelineError(
            f"topic {topic!r} begins at seq {border}: give --lake to take what is before it from the archive, "
            f"or --from-seq {border}"
        )
    check_archived(topic, first, min(last, border - 1), archive)
    return first, last, border


def check_archived(topic: str, first: int, last: int, archive: Archived | None) -> None:
    """Raise PipelineError where an archive is not all that was asked of a range which the live log has no more."""
    lost = joined(gap._replace(reason="") for gap in absent(archive, first, last) if gap.reason not in _HOLES)
    if lost:
        told = " and ".join(f"{one.first}..{one.last}" for one in lost)
        raise PipelineError(
            f"neither the archive nor the live log of topic {topic!r} has seqs {told}: replay what is "
            "beside them, with --from-seq and --to-seq, and --lake if there is an archive"
        )


def holes(archive: Archived | None, first: int, last: int) -> list[SeqGap]:
    """Holes of the log that an archive was told of, and which it has not filled."""
    return [gap for gap in absent(archive, first, last) if gap.reason in _HOLES]


def absent(archive: Archived | None, first: int, last: int) -> list[SeqGap]:
    """What an archive has not of a range, and why.

    A seq between others that is in no gap was deleted before it was archived: that is no loss. What is before the first
    one and behind the last one was never archived.
    """
    known = archive if archive is not None else Archived(Seqs())
    cut = [SeqGap(max(first, gap.first), min(last, gap.last), gap.reason) for gap in known.gaps]
    told = [SeqGap(*part, gap.reason) for gap in cut for part in beside(known.seqs.ranges, gap.first, gap.last)]
    held = known.held if known.seqs.ranges else SeqBounds(last + 1, last)
    edges = (SeqBounds(first, min(last, held.first - 1)), SeqBounds(max(first, held.last + 1), last))
    explained = joined(gap._replace(reason="") for gap in told)
    untold = [SeqGap(*part, _NOT_ARCHIVED) for edge in dict.fromkeys(edges) for part in beside(explained, *edge)]
    return sorted([*told, *untold])


def beside(taken: Sequence[Range | SeqGap], first: int, last: int) -> Iterator[SeqBounds]:
    """A range without those of some others, which are in order and do not overlap."""
    at = first
    for number in range(max(0, bisect_left(taken, first, key=lambda one: one.first) - 1), len(taken)):
        one = taken[number]
        if one.first > last:
            break
        if one.first > at:
            yield SeqBounds(at, one.first - 1)
        at = max(at, one.last + 1)
    if at <= last:
        yield SeqBounds(at, last)


def joined(parts: Iterable[SeqGap]) -> list[SeqGap]:
    """Gaps in order, those that touch and have one reason as one."""
    found: list[SeqGap] = []
    for part in sorted(parts):
        if found and found[-1].reason == part.reason and part.first <= found[-1].last + 1:
            found[-1] = found[-1]._replace(last=max(found[-1].last, part.last))
        else:
            found.append(part)
    return found
