"""Messages between the two halves of a shard's group commit: parcels to the writer, reports back.

Reports are cumulative: a later report contains everything of an earlier one, except for a failure.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct, field

from driftq.errors import DiskFullError, DriftQError, InternalError, ShardReadOnlyError, ShardStoppedError
from driftq.model.units import NS_PER_US

SYNC_BOUNDS_US = (50, 100, 250, 500, 1000, 5000, 10_000, 50_000, 100_000)
"""Upper bounds of the histogram of sync durations, in microseconds."""


class Parcel(Protocol):
    """Frames that are written to the log together."""

    @property
    def frames(self) -> Sequence[bytes]:
        """Return the frames; one buffer may contain several of them."""
        ...

    @property
    def frame_count(self) -> int:
        """Return the number of frames."""
        ...

    @property
    def size(self) -> int:
        """Return the total size of the frames in bytes."""
        ...

    @property
    def number(self) -> int:
        """Return the number of the parcel; numbers ascend in queue order."""
        ...

    @property
    def generation(self) -> int:
        """Return the number of failures that the loop had received when the parcel was queued."""
        ...

    @property
    def sync(self) -> bool:
        """Whether a caller waits for a sync that covers the parcel."""
        ...

    @property
    def prompt(self) -> bool:
        """Whether a caller waits until the parcel is written."""
        ...

    @property
    def uses_reserve(self) -> bool:
        """Whether the parcel may use the part of a file that is reserved for a full disk."""
        ...

    @property
    def late(self) -> "tuple[int, int] | None":
        """Return topic id and timestamp of an Append frame that a start may load after the server is ready.

        See `storage/wal/memory_spans`. Returns None for other parcels.
        """
        ...

    @property
    def shrinks(self) -> bool:
        """Whether the writer must give back all space that it does not use. Such a parcel has no frames."""
        ...

    @property
    def is_mark(self) -> bool:
        """Whether the parcel is the mark of a checkpoint: its end is reported, and a caller waits for its sync.

        If there is no room for a mark, only its place is reported.
        """
        ...

    @property
    def in_place(self) -> bool:
        """Whether a mark must not begin a small file, because the checkpoint needs every free byte."""
        ...


class WalCounters(Struct, array_like=True):
    """Counters of one shard's writer, for the metrics."""

    frames: int = 0
    batches: int = 0
    bytes: int = 0
    rotations: int = 0
    syncs: int = 0
    sync_ns: int = 0
    sync_counts: list[int] = field(default_factory=lambda: [0] * (len(SYNC_BOUNDS_US) + 1))
    """Number of syncs per bucket of `SYNC_BOUNDS_US`; the last bucket has those above all bounds."""

    def note_sync(self, took_ns: int) -> None:
        """Count a sync that took this many nanoseconds."""
        self.syncs += 1
        self.sync_ns += took_ns
        self.sync_counts[bisect_left(SYNC_BOUNDS_US, took_ns / NS_PER_US)] += 1


class Failure(Struct, frozen=True, array_like=True):
    """An error in a form that can be sent between processes."""

    kind: str
    message: str

    @staticmethod
    def of(error: DriftQError) -> "Failure":
        """Return the error's class name and message."""
        return Failure(type(error).__name__, error.message)

    def error(self) -> DriftQError:
        """Return the error that this failure describes."""
        return _ERRORS.get(self.kind, InternalError)(self.message)


_ERRORS: dict[str, type[InternalError]] = {
    error.__name__: error for error in (InternalError, DiskFullError, ShardReadOnlyError, ShardStoppedError)
}


class WriteReport(Struct, frozen=True, array_like=True):
    """The progress of the writer, and its last failure."""

    written: int
    """All requests of the parcels up to this number are fulfilled: written, and synced if they asked for it."""
    synced: int
    """Parcels up to this number are on stable storage."""
    synced_to: int
    """Synced end of the log as file number << 32 | offset, for the header of new frames."""
    sync_ns: int
    """How long the newest sync took, in nanoseconds."""
    counters: WalCounters
    prompt: bool = True
    """Whether a caller waits for this report."""
    failure: Failure | None = None
    generation: int = 0
    """Generation of the newest parcel that the failure affects."""
    ends: dict[int, int] = {}
    """End in the log of each mark, by parcel number."""
    full: Failure | None = None
    """Why there is no room for records; None if there is room."""
