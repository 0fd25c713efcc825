"""Log, then apply: the way of every change from a frame to the state.

    submitted → (commit point of its class) → applied → answered

Invariants
- Effects on one topic are applied in the order of its frames. A change whose commit point is "queued" is applied at
  once only when nothing of the topic is waiting; else it takes its turn.
- A change that fails is applied nowhere, and nor is what was queued behind it; seqs nobody was told of are free again.
- A change that is committed and cannot be applied, because a block it needs cannot be read, stops its shard: memory is
  behind the log from there on, and only a replay brings it up again. Until then no checkpoint is taken.
- Frames of one loop turn go to a shard's thread in one hand-over, and what is acked when queued is answered after it.
"""

from collections.abc import Callable
from typing import TypeVar

from driftq.engine.time import EngineTime
from driftq.engine.topic import Topic
from driftq.errors import DriftQError, ShardStoppedError, TopicNotFoundError
from driftq.seam.runtime import Pending, Runtime
from driftq.storage.commit import Shard, Submission
from driftq.storage.frame import encode_control
from driftq.storage.shards import Shards

T = TypeVar("T")


class Journal:
    """The door to the WAL, and the loop turn."""

    def __init__(self, runtime: Runtime, time: EngineTime, shards: Shards) -> None:
        self.time = time
        self.shards = shards
        self._runtime = runtime
        self._scheduled = False
        self._gathering = False
        """Is a turn collecting its frames? Then those that are queued go with it."""
        self._before_flush: list[Callable[[], None]] = []
        self._after_flush: list[Callable[[], None]] = []

    def at_turn(self, callback: Callable[[], None]) -> None:
        """Call back in every turn, before its frames are handed over."""
        self._before_flush.append(callback)

    def schedule(self) -> None:
        """There is something to hand over."""
        if not self._scheduled:
            self._scheduled = True
            self._runtime.soon(self._turn)

    def after_flush(self, callback: Callable[[], None]) -> None:
        """Call back once, when the frames of this turn are queued."""
        self._after_flush.append(callback)

    def shard_of(self, topic: Topic) -> Shard:
        """Where its frames go."""
        shards = self.shards.all
        return shards[topic.id % len(shards)]

    def between_shards(self, topic: Topic) -> bool:
        """May a power loss take a record of this topic and keep what a later one is copied from?"""
        return topic.fed and len(self.shards.all) > 1

    def submit(
        self,
        topic: Topic,
        frames: list[bytes],
        *,
        sync: bool,
        done: Callable[[Submission, DriftQError | None], None] | None,
        prompt: bool = True,
    ) -> int:
        """Queue frames. Returns the submission's number."""
        if not self._gathering:
            self.schedule()
        return self.shard_of(topic).submit(Submission(frames, sync=sync, done=done, prompt=prompt))

    def control(
        self,
        topic: Topic,
        kind: int,
        body: bytes,
        apply: Callable[[int, int], T],
        *,
        sync: bool = True,
        in_order: bool = True,
    ) -> Pending[T]:
        """Log one control frame; `apply(op, ts)` runs at its commit point and gives the answer.

        `in_order` is False where the effect commutes with records that come behind it.
        """
        self.shard_of(topic).check_room()
        pending: Pending[T] = Pending()
        op, ts = topic.next_op, max(self.time.now(), topic.last_ts)
        topic.next_op += 1
        topic.waiting += in_order

        def done(_: Submission, error: DriftQError | None) -> None:
            topic.waiting -= in_order
            if error is not None:
                self.give_back(topic)
                pending.fail(error)
            elif topic.gone:
                # Deleted by a frame before this one. Replay passes it over, too.
                pending.fail(TopicNotFoundError(topic.name))
            else:
                try:
                    value = self.apply(topic, lambda: apply(op, ts))
                except ShardStoppedError as stopped:
                    pending.fail(stopped)
                else:
                    pending.resolve(value)

        synced_to = self.shard_of(topic).synced_to
        frame = encode_control(kind, body, topic_id=topic.id, op=op, ts=ts, synced_to=synced_to)
        self.submit(topic, [frame], sync=sync, done=done)
        return pending

    def apply(self, topic: Topic, change: Callable[[], T]) -> T:
        """Make a change that is committed. Raises ShardStoppedError."""
        try:
            return change()
        except OSError as error:
            stopped = ShardStoppedError(
                f"a committed change could not be applied: {error.strerror}; restart the server to recover"
            )
            self.shard_of(topic).stop(stopped)
            raise stopped from error

    def give_back(self, topic: Topic) -> None:
        """After a failure: once nothing is waiting, the seqs that nobody was told of are free."""
        if not topic.waiting:
            topic.next_seq = topic.head + 1

    def _turn(self) -> None:
        self._scheduled = False
        self._gathering = True
        try:
            for callback in self._before_flush:
                callback()
        finally:
            # Whatever became of one of them, what is queued goes on its way, and whoever waits for that hears of it.
            self._gathering = False
            self.shards.flush()
            answers, self._after_flush = self._after_flush, []
            for answer in answers:
                answer()
