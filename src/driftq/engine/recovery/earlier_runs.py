"""The runs of the server whose frames a start replays, and what is known of how each of them ended.

A run is the life of one server process; every WAL file has the number of its run in its head. This is used for two
things.

Jumps. Within a run seqs are given out without a gap, so a jump between two frames of one run proves that acked records
are missing. At the first frame of a topic in a run a jump proves nothing if the start before it may have raised the
head to the reservation.

Reservations. If the log of every shard of a run ends with a frame of kind DRAINED, everything that the server of that
run passed to the log writer is in the log, and it showed and acked nothing else. So no reader saw a seq above the head:
a reservation of that run is lowered to the head, and there is no hole. Without these frames the log writer died too, or
the power failed, and the head is raised to the reservation with a hole that is `at_most`.

Invariants
- A reservation belongs to the run that logged it. Later runs gave out no seq of the topic without logging a reservation
  of their own, so how they ended does not matter for it.
- A frame that is applied out of its order, and a reservation that is a guess after damage, prove nothing.
"""

from collections import defaultdict
from collections.abc import Iterable

from driftq.engine.state.topic import Topic
from driftq.model.limits import RESERVE_MAX
from driftq.model.tombstone import Reason
from driftq.model.topic_config import Durability
from driftq.storage.wal.wal_head import FileHead


class Runs:
    """Tracks which run is being replayed, which runs are complete, and which heads a start may have raised."""

    def __init__(self) -> None:
        self._run: int | None = None
        self._shard = 0
        self._shards: dict[int, int] = {}
        self._drained: dict[int, set[int]] = defaultdict(set)
        self._raised: dict[int, int] = {}
        """Topics whose head a start may have raised above what is known here, and that head."""
        self._checkpoint_run: int | None = None
        self._reserved_in: dict[int, int | None] = {}
        """The run that logged the reservation of a topic; a topic that is not in it has that of the checkpoint."""
        self.all_read = False
        """Whether every file has been read; frames that waited for that are applied out of their order."""

    def begin(self, run: int | None) -> None:
        """Begin after a checkpoint of this run; None without a checkpoint, or if its run is unknown."""
        self._run = self._checkpoint_run = run

    def enter(self, head: FileHead | None, topics: Iterable[Topic]) -> None:
        """Begin a file with this head; None if the head cannot be read."""
        run = None if head is None else head.run
        if run is None or run != self._run:
            ended_complete = self._is_drained(self._run)
            before = self._raised
            self._raised = {
                topic.id: topic.head for topic in topics if not ended_complete or before.get(topic.id) == topic.head
            }
        self._run = run
        if head is not None:
            self._shard = head.shard
            self._shards[head.run] = head.shards

    def drained(self) -> None:
        """Note that the log of the shard whose file is being read is complete."""
        if self._run is not None and not self.all_read:
            self._drained[self._run].add(self._shard)

    def reserved(self, topic: Topic) -> None:
        """Note that the frame that is being applied reserves seqs of a topic."""
        self._reserved_in[topic.id] = None if self.all_read else self._run

    def reserve_most(self, topic: Topic) -> None:
        """Assume the largest reservation, because the lost frame may have been one. The next one corrects it."""
        if topic.durability is Durability.DISK:
            topic.reserved = topic.head + RESERVE_MAX
            self._reserved_in[topic.id] = None

    def may_be_raised(self, topic: Topic) -> bool:
        """Whether the start of this run may have raised the head of a topic, and nothing was written to it since."""
        return self.all_read or self._raised.get(topic.id) == topic.head

    def settle(self, topic: Topic) -> None:
        """Lower an unseen reservation to the head, or raise the head to the reservation."""
        if topic.durability is Durability.DISK and topic.reserved > topic.head:
            if self._is_drained(self._reserved_in.get(topic.id, self._checkpoint_run)):
                topic.reserved = topic.head
            else:
                topic.skip_to(topic.reserved, Reason.CRASH, at_most=True)

    def _is_drained(self, run: int | None) -> bool:
        return run is not None and self._drained.get(run) == set(range(self._shards.get(run, 0)))
