"""Which seqs a replay takes, from where, and in which steps. Pure.

    seqs     from ──────── border ──────── to
             archive        │ live log
             [step 0][step 1][step 2]…          each one a batch of one writer, published once

What the live log has is read there, for only there deletes are known; what it has lost is in the archive.

Invariant: the steps of a plan cover its range without overlap, and are the same whenever they are asked for.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.planning import Gap

STEP_ROWS = 200_000


class Held(NamedTuple):
    """What a log or an archive has of a topic: its first and last seq; nothing if the last is below the first."""

    first: int
    last: int


class Plan(Struct, frozen=True):
    """A replay, as it was planned. Kept with the destination, so that it can go on."""

    id: str
    topic: str
    epoch: int
    first: int
    last: int
    border: int
    """From here on the live log is read, before it the archive."""
    step: int
    where: str | None = None

    @property
    def seqs(self) -> int:
        """How many seqs it covers."""
        return max(0, self.last - self.first + 1)

    @property
    def writer(self) -> str:
        """Whose batches the steps are."""
        return f"replay:{self.id}"

    def steps(self, after: int = -1) -> Iterator[tuple[int, int, int]]:
        """Number, first and last seq of each step behind the one with this number."""
        for number in range(after + 1, -(-self.seqs // self.step)):
            first = self.first + number * self.step
            yield number, first, min(self.last, first + self.step - 1)

    def done(self, step: int) -> int:
        """The last seq of the step with this number; -1 is before the first."""
        return min(self.last, self.first + (step + 1) * self.step - 1)


class Wanted(NamedTuple):
    """The range that was asked for; None is as far as there is something."""

    first: int | None
    last: int | None


def bounds(topic: str, wanted: Wanted, live: Held | None, archive: Held | None) -> tuple[int, int, int]:
    """First and last seq and the border. Raises PipelineError where the range is not all there to be read."""
    known = [held for held in (live, archive) if held is not None and held.last >= held.first]
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


def check_archived(topic: str, first: int, last: int, archive: Held | None) -> None:
    """Raise PipelineError where an archive is not all that was asked of a range which the live log has no more."""
    held = archive if archive is not None and archive.last >= archive.first else Held(last + 1, last)
    before, behind = Held(first, min(last, held.first - 1)), Held(max(first, held.last + 1), last)
    lost = [f"{one.first}..{one.last}" for one in dict.fromkeys((before, behind)) if one.first <= one.last]
    if lost:
        raise PipelineError(
            f"neither the archive nor the live log of topic {topic!r} has seqs {' and '.join(lost)}: replay what is "
            "beside them, with --from-seq and --to-seq, and --lake if there is an archive"
        )


def joined(parts: Iterable[Gap]) -> list[Gap]:
    """Gaps in order, those that touch and have one reason as one."""
    found: list[Gap] = []
    for part in sorted(parts):
        if found and found[-1].reason == part.reason and part.first <= found[-1].last + 1:
            found[-1] = found[-1]._replace(last=max(found[-1].last, part.last))
        else:
            found.append(part)
    return found
