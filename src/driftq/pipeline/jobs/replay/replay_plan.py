"""Plans a replay: which seqs it writes, where they are read, and in which steps. Pure functions and values.

    seqs     from ──────── border ──────── to
             archive        │ live log
             [step  ][step  ][st][ep][step  ]…          each one a batch of one writer, published once

Records that the live log still has are read there, because only the live log knows which are deleted. Older ones come
from the archive.

The number of a batch is the last seq of its step, so the writer's last batch shows how far the replay is, whatever the
steps were. A step that is too large for one publication is halved, repeatedly if needed.

Invariant: the steps of a plan cover its range without overlap, and the step after a given seq depends only on the plan:
two runs of one plan write the same batches.
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
"""Target size of a step in bytes. It is well below the limit of one publication, because record sizes vary."""
_HOLES = frozenset(("crash", "corruption", "source_trim"))
"""Reasons of losses that are holes of the log itself. No copy exists; the replay reports them and continues."""
_NOT_ARCHIVED = "not archived"


class SeqBounds(NamedTuple):
    """First and last seq that a log or an archive has of a topic. Empty if the last is below the first."""

    first: int
    last: int


class Archived(NamedTuple):
    """The seqs that an archive has of a topic, and the losses that were reported to it."""

    seqs: Seqs
    gaps: tuple[SeqGap, ...] = ()

    @property
    def held(self) -> SeqBounds:
        """The range from the first to the last archived seq."""
        ranges = self.seqs.ranges
        return SeqBounds(ranges[0].first, ranges[-1].last) if ranges else SeqBounds(1, 0)


class ReplayRequest(Struct, frozen=True, kw_only=True):
    """What a replay was asked for. The lake is not part of it: it only determines where records are read."""

    topic: str
    from_seq: int | None = None
    to_seq: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    where: str | None = None
    epoch: int | None = None

    def key(self, *more: object) -> str:
        """Return a short name that is the same for the same request."""
        return sha256(json.encode([*structs.astuple(self), *more])).hexdigest()[:16]

    def unlike(self, other: "ReplayRequest") -> str:
        """Describe the options in which another request differs; empty if there is no difference."""
        mine, theirs = structs.asdict(self), structs.asdict(other)
        return ", ".join(
            f"{name} is {_shown(mine[name])}, here it is {_shown(theirs[name])}"
            for name in mine
            if mine[name] != theirs[name]
        )


def _shown(value: object) -> str:
    return "not given" if value is None else repr(value)


class ReplayPlan(Struct, frozen=True):
    """A replay as it was planned. Stored with the destination, so that it can continue."""

    name: str
    """Name of the cursor that stores the plan."""
    asked: ReplayRequest
    epoch: int
    first: int
    last: int
    border: int
    """The live log is read from this seq on, the archive below it."""
    step: int

    @property
    def topic(self) -> str:
        """Name of the topic to read."""
        return self.asked.topic

    @property
    def seqs(self) -> int:
        """Number of seqs in the range."""
        return max(0, self.last - self.first + 1)

    @property
    def writer(self) -> str:
        """Name of the writer of all steps. Two plans for one request share it, so both know what is written."""
        return f"replay:{self.asked.key(self.name, self.epoch)}"

    def behind(self, seq: int) -> SeqBounds:
        """Return the largest step that starts right after `seq`."""
        first = self.first + (seq + 1 - self.first) // self.step * self.step
        part = SeqBounds(first, min(self.last, first + self.step - 1))
        while part.first <= seq:
            left = first_half(part)
            part = left if seq < left.last else SeqBounds(left.last + 1, part.last)
        return part


def first_half(step: SeqBounds) -> SeqBounds:
    """Return the first half of a step that is too large. The step must have more than one seq."""
    assert step.first < step.last, "a step of one seq cannot be halved"
    return SeqBounds(step.first, (step.first + step.last) // 2)


def step_rows(record_bytes: float) -> int:
    """Return how many records of about this size (bytes) a step has at most."""
    return max(1, min(STEP_ROWS, int(_STEP_BYTES / max(record_bytes, 1.0))))


class Wanted(NamedTuple):
    """The requested range. None means no limit on that side."""

    first: int | None
    last: int | None


def bounds(topic: str, wanted: Wanted, live: SeqBounds | None, archive: Archived | None) -> tuple[int, int, int]:
    """Return first seq, last seq and border. Raises PipelineError if a part of the range cannot be read."""
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
            f"topic {topic!r} begins at seq {border}: give --lake to read earlier records from the archive, "
            f"or --from-seq {border}"
        )
    check_archived(topic, first, min(last, border - 1), archive)
    return first, last, border


def check_archived(topic: str, first: int, last: int, archive: Archived | None) -> None:
    """Raise PipelineError if the archive lacks a part of a range that the live log no longer has."""
    lost = joined(gap._replace(reason="") for gap in absent(archive, first, last) if gap.reason not in _HOLES)
    if lost:
        told = " and ".join(f"{one.first}..{one.last}" for one in lost)
        raise PipelineError(
            f"neither the archive nor the live log of topic {topic!r} has seqs {told}: replay the seqs "
            "before or after them with --from-seq and --to-seq, and give --lake if there is an archive"
        )


def holes(archive: Archived | None, first: int, last: int) -> list[SeqGap]:
    """Return the holes of the log that were reported to the archive and that it does not have."""
    return [gap for gap in absent(archive, first, last) if gap.reason in _HOLES]


def absent(archive: Archived | None, first: int, last: int) -> list[SeqGap]:
    """Return the parts of a range that an archive does not have, and why.

    A seq between archived ones that is not in any gap was deleted before it was archived; that is not a loss. Seqs
    before the first and after the last archived one were never archived.
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
    """Yield the parts of a range that are outside of the `taken` ranges, which are sorted and do not overlap."""
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
    """Return sorted gaps; gaps that touch and have the same reason are merged."""
    found: list[SeqGap] = []
    for part in sorted(parts):
        if found and found[-1].reason == part.reason and part.first <= found[-1].last + 1:
            found[-1] = found[-1]._replace(last=max(found[-1].last, part.last))
        else:
            found.append(part)
    return found
