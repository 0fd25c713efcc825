"""Logs retention floors that replay cannot recompute: those of topics that were `ephemeral` for a time.

Where the log has all records, replay computes from it which of them a cap removed. A topic that changes to `ephemeral`
or back has two kinds of records: those that a restart restores, and those that it does not. After a restart there are
fewer records to count, so the cap would remove fewer, and records that it had removed would be visible again.

    moved → due → in flight (one frame at a time) → logged | due again after 50 ms if the log did not accept the frame

Invariants
- While `mixed_to` of a topic is not 0, seqs up to it may be of either kind, and every move of its floor is logged.
- The frame goes to the shard in the turn of the move: for a `disk` write, with the write itself.
- Once a logged floor is above `mixed_to`, all remaining records are of one kind, and the log alone gives the floors
  again.
"""

from driftq.engine.state.control_frames import FloorsBody, encode_body
from driftq.engine.state.topic import Topic
from driftq.engine.write.change_log import ChangeLog
from driftq.engine.write.state_changes import apply_floors
from driftq.errors import DriftQError
from driftq.storage.blocks.frame import Kind
from driftq.system.runtime import Pending, Runtime, Timer

_RETRY_MS = 50


class FloorLog:
    """Collects moved floors and logs them, one frame per topic at a time."""

    def __init__(self, change_log: ChangeLog, runtime: Runtime) -> None:
        self._change_log = change_log
        self._runtime = runtime
        self._due: set[Topic] = set()
        self._under_way: set[Topic] = set()
        self._timer: Timer | None = None
        change_log.at_turn(self._log_due)

    def moved(self, topic: Topic) -> None:
        """Log the floor of a mixed topic, which has moved, in this turn."""
        self._due.add(topic)
        self._change_log.schedule()

    def _log_due(self) -> None:
        for topic in self._due - self._under_way:
            if self._past_logging(topic) or self._log(topic):
                self._due.discard(topic)

    def _past_logging(self, topic: Topic) -> bool:
        """Whether the topic is deleted or its log stopped, so that nothing more can be logged for it."""
        return topic.gone or self._change_log.shard_of(topic).stopped is not None

    def _log(self, topic: Topic) -> bool:
        """Log the current floor. Returns whether the log accepted it; if not, it is tried again."""
        body = self._body(topic)

        def apply(op: int, _: int) -> None:
            apply_floors(topic, body, op)
            if body.earliest > topic.mixed_to:
                topic.mixed_to = 0

        try:
            logged = self._change_log.control(topic, Kind.FLOORS, encode_body(body), apply, in_order=False)
        except DriftQError:
            self._try_later()
            return False
        self._under_way.add(topic)
        logged.then(lambda done: self._settle(topic, done))
        return True

    def _body(self, topic: Topic) -> FloorsBody:
        """Return the floors, limited to seqs in the log: those of an `ephemeral` topic end at `mixed_to`."""
        last = topic.mixed_to if topic.is_resident() else topic.head
        return FloorsBody(
            earliest=min(topic.earliest, last + 1),
            cap_lost=min(topic.cap_lost, last),
            ttl_lost=min(topic.ttl_lost, last),
        )

    def _settle(self, topic: Topic, done: Pending[None]) -> None:
        self._under_way.discard(topic)
        if done.error is not None and not self._past_logging(topic):
            self._due.add(topic)
            self._try_later()
        elif topic in self._due:
            self._change_log.schedule()

    def _try_later(self) -> None:
        if self._timer is None:
            self._timer = self._runtime.later(_RETRY_MS, self._try_again)

    def _try_again(self) -> None:
        self._timer = None
        self._change_log.schedule()
