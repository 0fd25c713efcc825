"""Logs each change and then applies it to the state.

    submitted → (commit point of its class) → applied → answered

Invariants
- Effects on one topic are applied in the order of its frames. A change whose commit point is "queued" is applied at
  once only when the topic has no change waiting; otherwise it waits for its turn.
- A change that fails is not applied, and neither are the changes queued after it; seqs that no caller got are free
  again.
- A change that is committed but cannot be applied, because a block it needs is unavailable, stops its shard: from then
  on memory lags behind the log, and only a replay can repair that. Until then no checkpoint is taken.
- Frames of one loop turn are passed to a shard's writer together. Changes that do not wait for the writer are applied
  and answered when their frames have been passed on, mostly in the same turn.
"""

from collections.abc import Callable
from typing import TypeVar

from driftq.engine.engine_time import EngineTime
from driftq.engine.load.disk_space import DiskSpace
from driftq.engine.load.unsealed_limit import UnsealedLimit
from driftq.engine.state.control_frames import encode_body
from driftq.engine.state.topic import Topic
from driftq.errors import DiskFullError, DriftQError, ShardReadOnlyError, ShardStoppedError, TopicNotFoundError
from driftq.model.topic_config import Durability
from driftq.storage.blocks.frame import Kind, encode_control
from driftq.storage.wal.group_commit import Shard, Submission
from driftq.storage.wal.shards import Shards
from driftq.system.runtime import Pending, Runtime

T = TypeVar("T")
_A = TypeVar("_A")
_B = TypeVar("_B")


class ChangeLog:
    """The only way to write to the WAL; schedules one flush per loop turn."""

    def __init__(
        self, runtime: Runtime, time: EngineTime, shards: Shards, unsealed: UnsealedLimit, space: DiskSpace
    ) -> None:
        self.time = time
        self.unsealed = unsealed
        self.shards = shards
        self.space = space
        space.watch(shards.all)
        self.is_caught_up: Callable[[Topic], bool] = lambda _: True
        """Whether routers have copied into this topic all that was submitted (`features/router/router_table`)."""
        self.on_lost: Callable[[Topic, int], None] = lambda _topic, _first: None
        """Called with the topic and the first seq when the write of records that are already visible has failed."""
        self.before_frames: Callable[[], None] | None = None
        """Queues frames that must be in the log before any other (`features/router/copy_marks`); None without any."""
        self._runtime = runtime
        self._scheduled = False
        self._gathering = False
        """Whether a turn is collecting its frames; frames queued meanwhile are part of it."""
        self._before_flush: list[Callable[[], None]] = []
        self._after_flush: list[Callable[[], None]] = []
        time.changed = self._log_clock

    def at_turn(self, callback: Callable[[], None]) -> None:
        """Call back in every turn, before its frames are passed to the writers."""
        self._before_flush.append(callback)

    def schedule(self) -> None:
        """Make sure that a turn runs soon and passes queued frames to the writers."""
        if not self._scheduled:
            self._scheduled = True
            self._runtime.soon(self._turn)

    def after_flush(self, callback: Callable[[], None]) -> None:
        """Call back once, when the frames of this turn are queued."""
        self._after_flush.append(callback)

    def shard_of(self, topic: Topic) -> Shard:
        """Return the shard that logs the frames of a topic."""
        shards = self.shards.all
        return shards[topic.id % len(shards)]

    def check_append(self, topic: Topic, size: int = 0) -> None:
        """Refuse records for a topic before anything is changed; `size` as in `UnsealedLimit.check`.

        Raises ShardStoppedError, ThrottledError, DiskFullError or ShardReadOnlyError.
        """
        self.shard_of(topic).check_room()
        self.unsealed.check(size)
        if self.space.short and topic.durability is not Durability.EPHEMERAL:
            self.space.check()

    def between_shards(self, topic: Topic) -> bool:
        """Whether a power loss may lose a frame of this topic but keep a later frame that a copy in it is made from."""
        return topic.fed and len(self.shards.all) > 1

    def overtakes_copies(self, topic: Topic) -> bool:
        """Whether a crash may lose the next write to this topic but keep the source record of a later copy.

        Recovery would then make that copy again at the seq of the write. Frames of one shard are lost from the end, so
        with one shard this needs a record that is in the log and not copied yet.
        """
        return topic.fed and (len(self.shards.all) > 1 or not self.is_caught_up(topic))

    def queue_first(self) -> None:
        """Queue what must be in the log before any other frame. Call it before a control frame gets its number."""
        if self.before_frames is not None:
            self.before_frames()

    def submit(
        self,
        topic: Topic,
        frames: list[bytes],
        *,
        sync: bool,
        done: Callable[[Submission, DriftQError | None], None] | None,
        prompt: bool = True,
        handed: Callable[[Submission, DriftQError | None], None] | None = None,
        uses_reserve: bool = False,
        late: tuple[int, int] | None = None,
    ) -> int:
        """Queue frames; `late` as in `Submission`. Returns the submission's number."""
        if not self._gathering:
            self.schedule()
        return self.shard_of(topic).submit(
            Submission(frames, sync=sync, done=done, prompt=prompt, handed=handed, uses_reserve=uses_reserve, late=late)
        )

    def control(
        self,
        topic: Topic,
        kind: int,
        body: bytes,
        apply: Callable[[int, int], T],
        *,
        sync: bool = True,
        in_order: bool = True,
        uses_reserve: bool = True,
        again: bool = False,
        checks_room: bool = True,
    ) -> Pending[T]:
        """Log one control frame; `apply(op, ts)` runs at its commit point and returns the result.

        `in_order` is False if the effect commutes with records logged after it. `uses_reserve` is False if it need not
        work on a full disk. `again`: a frame that fails because the disk is full is logged once more, when space has
        been freed. `checks_room` is False for frames that `before_frames` queues: the frame after them was checked.
        """
        if checks_room:
            self.shard_of(topic).check_room()
        if not uses_reserve:
            self.space.check()
        self.queue_first()
        pending: Pending[T] = Pending()
        flight = topic.in_flight
        op, ts = flight.next_op, max(self.time.stamp(), topic.last_ts)
        flight.next_op += 1
        flight.waiting += in_order

        def done(_: Submission, error: DriftQError | None) -> None:
            flight.waiting -= in_order
            if error is not None:
                self.give_back(topic)
                if again and isinstance(error, DiskFullError | ShardReadOnlyError) and not topic.gone:
                    self.space.when_relieved(
                        lambda: forward(
                            lambda: self.control(topic, kind, body, apply, sync=sync, in_order=in_order), pending
                        )
                    )
                else:
                    pending.fail(error)
            elif topic.gone:
                # Deleted by an earlier frame. Replay skips this frame too.
                pending.fail(TopicNotFoundError(topic.name))
            else:
                try:
                    value = apply(op, ts)
                except OSError as unreadable:
                    pending.fail(self.stopped_by(topic, unreadable))
                else:
                    pending.resolve(value)

        synced_to = self.shard_of(topic).synced_to
        frame = encode_control(kind, body, topic_id=topic.id, op=op, ts=ts, synced_to=synced_to)
        self.submit(topic, [frame], sync=sync, done=done, uses_reserve=uses_reserve)
        return pending

    def _log_clock(self) -> None:
        """Log how the clocks relate, to every shard, because the frames of each shard are read without the others."""
        state = self.time.state()
        body = encode_body(state)

        def done(_: Submission, error: DriftQError | None) -> None:
            if error is not None:
                self.time.not_logged()

        for shard in self.shards.all:
            if shard.stopped is None:
                frame = encode_control(Kind.CLOCK, body, topic_id=0, op=0, ts=state.stamp, synced_to=shard.synced_to)
                shard.submit(Submission([frame], sync=False, done=done, prompt=False, uses_reserve=True))
        self.schedule()

    def stopped_by(self, topic: Topic, error: OSError) -> ShardStoppedError:
        """Stop the shard, because a block that a committed change needs cannot be read. Returns the caller's error."""
        return self.shard_of(topic).stop(f"a committed change could not be applied: {error.strerror}")

    def give_back(self, topic: Topic) -> None:
        """Free the seqs of failed writes, which no caller got, once no change of the topic is waiting."""
        if not topic.in_flight.waiting:
            topic.in_flight.next_seq = topic.head + 1

    def _turn(self) -> None:
        self._scheduled = False
        self._gathering = True
        try:
            self.queue_first()
            for callback in self._before_flush:
                callback()
        finally:
            # Even after an exception, pass on what is queued, because callers wait for it.
            self._gathering = False
            self.shards.flush()
            self.shards.hand_over()
            answers, self._after_flush = self._after_flush, []
            for answer in answers:
                answer()


def settle_with(inner: Pending[_A], answer: Pending[_B], value: Callable[[_A], _B]) -> None:
    """Settle `answer` when `inner` settles: with the same error, or with `value` of its result."""

    def settle(done: Pending[_A]) -> None:
        if done.error is not None:
            answer.fail(done.error)
        else:
            answer.resolve(value(done.result()))

    inner.then(settle)


def forward(call: Callable[[], Pending[_A]], answer: Pending[_A]) -> None:
    """Make a call later and settle with its result the answer that an earlier caller already holds."""
    try:
        settle_with(call(), answer, lambda value: value)
    except DriftQError as error:
        answer.fail(error)
