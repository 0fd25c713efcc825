"""Queues as one feature: creates its parts for the server and its handlers."""

from driftq.engine.engine import Engine
from driftq.engine.state.topic import Topic
from driftq.features.queue.backlog import Backlog, QueueCounters
from driftq.features.queue.claims import Claimer
from driftq.features.queue.job_push import Pusher, PushTurns
from driftq.features.queue.job_settlement import JobSettler
from driftq.features.queue.lease_log import LeaseLog
from driftq.features.queue.waiting_claims import Waits
from driftq.system.entropy import Entropy
from driftq.system.runtime import Runtime

_RUN_ID_BYTES = 4


class Queues:
    """Claim, wait, settle, push and count jobs. `book` is a feature of the engine; all streams share `turns`."""

    def __init__(
        self, engine: Engine, runtime: Runtime, entropy: Entropy, turns: PushTurns, lease_log: LeaseLog
    ) -> None:
        self._engine = engine
        self._lease_log = lease_log
        self.backlog = Backlog(engine, lease_log)
        # Claim numbers start at another random point in every run, so that no lease id occurs twice.
        run_id = int.from_bytes(entropy.token(_RUN_ID_BYTES)) >> 1
        self.claimer = Claimer(engine, runtime, self.backlog, run_id)
        self.settler = JobSettler(engine, self.backlog)
        self.waits = Waits(engine, runtime, self.backlog, self.claimer, self.settler)
        self.pusher = Pusher(engine, runtime, turns, self.backlog, self.claimer, self.settler)

    def open(self) -> None:
        """Finish recovery: correct the lease tables."""
        self._lease_log.open(self._engine)

    def counters(self, topic: Topic) -> QueueCounters:
        """Return how many jobs of a queue are ready, in flight and dead-lettered."""
        return self.backlog.counters(topic)
