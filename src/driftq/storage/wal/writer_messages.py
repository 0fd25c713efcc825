"""What the two halves of a shard's group commit say to each other: parcels to the writer, reports back.

Reports are cumulative: of two, the later one says all that the earlier did, but for a failure.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct, field

from driftq.errors import DiskFullError, DriftQError, InternalError, ShardReadOnlyError, ShardStoppedError

SYNC_BOUNDS_US = (50, 100, 250, 500, 1000, 5000, 10_000, 50_000, 100_000)
"""Between which durations syncs are counted."""
_NS_PER_US = 1000


class Parcel(Protocol):
    """Frames that reach the file together."""

    @property
    def frames(self) -> Sequence[bytes]:
        """The frames, or what stands in for several of them."""
        ...

    @property
    def frame_count(self) -> int:
        """How many frames they are."""
        ...

    @property
    def size(self) -> int:
        """Their bytes."""
        ...

    @property
    def number(self) -> int:
        """In the order of parcels."""
        ...

    @property
    def generation(self) -> int:
        """How many failures the loop had heard of when it was queued."""
        ...

    @property
    def sync(self) -> bool:
        """Whether a caller waits for a sync that covers it."""
        ...

    @property
    def prompt(self) -> bool:
        """Whether a caller waits until it is written."""
        ...

    @property
    def uses_reserve(self) -> bool:
        """Whether it may go into the part of a file that is kept for a full disk."""
        ...

    @property
    def late(self) -> "tuple[int, int] | None":
        """Topic and stamp, where it is an Append frame that a start may read when it is ready
        (`storage/wal/memory_spans`)."""
        ...

    @property
    def shrinks(self) -> bool:
        """Whether the writer is to give back all space that it does not use; such a parcel has no frames."""
        ...

    @property
    def is_mark(self) -> bool:
        """Whether it is the mark of a checkpoint: where it ends is told, and somebody waits for its sync.

        Of one without room only the place is told.
        """
        ...


class WalCounters(Struct, array_like=True):
    """What the metrics show of one shard's file."""

    frames: int = 0
    batches: int = 0
    bytes: int = 0
    rotations: int = 0
    syncs: int = 0
    sync_ns: int = 0
    sync_counts: list[int] = field(default_factory=lambda: [0] * (len(SYNC_BOUNDS_US) + 1))
    """How many syncs took up to each bound, and more than the last."""

    def note_sync(self, took_ns: int) -> None:
        """A sync has ended."""
        self.syncs += 1
        self.sync_ns += took_ns
        self.sync_counts[bisect_left(SYNC_BOUNDS_US, took_ns / _NS_PER_US)] += 1


class Failure(Struct, frozen=True, array_like=True):
    """An error that can be sent."""

    kind: str
    message: str

    @staticmethod
    def of(error: DriftQError) -> "Failure":
        """What is to be told of it."""
        return Failure(type(error).__name__, error.message)

    def error(self) -> DriftQError:
        """The error again."""
        return _ERRORS.get(self.kind, InternalError)(self.message)


_ERRORS: dict[str, type[InternalError]] = {
    error.__name__: error for error in (InternalError, DiskFullError, ShardReadOnlyError, ShardStoppedError)
}


class WriteReport(Struct, frozen=True, array_like=True):
    """How far the writer has come, and what went wrong."""

    written: int
    """Parcels up to this number have all they asked for."""
    synced: int
    """Parcels up to this number are on stable storage."""
    synced_to: int
    """The same as a place in the log: what a frame that is built now may say."""
    sync_ns: int
    """How long the newest sync took."""
    counters: WalCounters
    prompt: bool = True
    """Whether a caller waits for this report."""
    failure: Failure | None = None
    generation: int = 0
    """Of the newest parcel that a failure has met."""
    ends: dict[int, int] = {}
    """Where parcels end whose place was asked for, by their number."""
    full: Failure | None = None
    """Why there is no room for records; None where there is."""
