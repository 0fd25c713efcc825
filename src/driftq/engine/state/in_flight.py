"""What is in flight for one topic: the numbers of writes to come, and how far those that were sent have got.

    accepted (`records`, `payload`) → sent, with its seqs (`next_seq`, `waiting`) → applied → synced (`synced_seq`)

A write that fails before it is applied gives its seqs back. One that fails after its ack is lost (`lost_from`), until a
checkpoint has its records.

Nothing of this is in a checkpoint: after a restart nothing is in flight. `engine/state/topic` is the state of a topic.

Invariants
- `handing <= waiting`. While `waiting` is 0, `next_seq` is the topic's `head + 1`.
- `synced_seq` is below `lost_from`, while that is set, for every caller of `synced`.
"""

from collections import deque

from driftq.model.limits import RESERVE_MIN
from driftq.storage.wal.group_commit import Shard

_UNSYNCED_KEPT = 64


class TopicInFlight:
    """Counters of one topic's writes and control operations that are not finished."""

    __slots__ = (
        "acked_since_reserve",
        "handing",
        "held",
        "lost_from",
        "lost_to",
        "next_op",
        "next_seq",
        "payload",
        "records",
        "reserve_asked",
        "reserve_window",
        "synced_seq",
        "unsynced",
        "waiting",
    )

    def __init__(self) -> None:
        self.next_seq = 1
        """The seq of the next record that is sent."""
        self.next_op = 1
        """The number of the next control frame."""
        self.held = 0
        """Number of control operations that writes must not overtake."""
        self.waiting = 0
        """Number of submissions that are not applied yet; later ones wait for them."""
        self.handing = 0
        """The part of `waiting` that is applied when it is passed to the log writer, before the writer has written it.
        """
        self.records = 0
        self.payload = 0
        """Records and payload bytes that were accepted and are not visible yet; caps and quota count them."""
        self.reserve_asked = 0
        """`disk`: the highest seq of the reservation that was requested last (`engine/write/seq_reservations`)."""
        self.reserve_window = RESERVE_MIN
        self.acked_since_reserve = 0
        self.unsynced: deque[tuple[int, int]] = deque()
        """Numbers of submissions, each with the last seq that is on stable storage when it is synced."""
        self.synced_seq = 0
        self.lost_from: int | None = None
        """First seq whose frame a failed write lost after its ack, until a checkpoint has it
        (`engine/write/lost_writes`)."""
        self.lost_to = 0
        """The last seq whose frame a failed write lost after its ack; meaningless while `lost_from` is None."""

    def note_unsynced(self, shard: Shard, number: int, last_seq: int) -> None:
        """Note that seqs up to `last_seq` are on stable storage once the shard has synced submission `number`."""
        self.unsynced.append((number, last_seq))
        if len(self.unsynced) > _UNSYNCED_KEPT:
            self.synced(shard)

    def synced(self, shard: Shard) -> int:
        """Return the highest seq that is known to be on stable storage."""
        unsynced = self.unsynced
        while unsynced and unsynced[0][0] <= shard.synced_number:
            self.synced_seq = unsynced.popleft()[1]
        if self.lost_from is not None:
            return min(self.synced_seq, self.lost_from - 1)
        return self.synced_seq
