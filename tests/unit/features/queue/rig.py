"""Queues on a simulated server, with the short words that tests want: claim, ack, nack, extend, counters."""

from typing import Any

from msgspec import json

from driftq.errors import SegmentUnavailableError
from driftq.features.queue.claims import ClaimResult
from driftq.features.queue.job_push import Push
from driftq.features.queue.job_settlement import ExtendedJobs, Settled
from driftq.features.queue.lease_log import LeaseLog
from driftq.features.queue.queues import Queues
from driftq.features.watch.turns import Turns
from driftq.model.topic_config import Durability
from driftq.system.runtime import Pending
from driftq.testing import EngineRig
from driftq.testing.seeded_entropy import SeededEntropy

LONG_MS = 3_600_000


class QueueRig(EngineRig):
    """An engine with queues."""

    def __init__(self, **options: Any) -> None:
        self._lives = 0
        super().__init__(features=lambda: (LeaseLog(),), **options)

    def start(self) -> None:
        super().start()
        self._lives += 1
        (lease_log,) = self.features
        assert isinstance(lease_log, LeaseLog)
        turns = Turns(self.engine, self.runtime, self.clock)
        self.queues = Queues(self.engine, self.runtime, SeededEntropy(self._lives), turns, lease_log)
        self.queues.open()

    def queue(self, name: str = "q", jobs: int = 0, durability: Durability = Durability.FSYNC, **config: Any) -> str:
        """A queue that holds the jobs 1, 2, 3, … under these very seqs."""
        self.put(name, durability, type="queue", **{"lease_ms": LONG_MS, **config})
        if jobs:
            self.write(name, *range(1, jobs + 1))
        return name

    def claim_nowait(
        self, name: str = "q", node: str = "w", limit: int = 1, lease_ms: int | None = None
    ) -> Pending[ClaimResult]:
        topic, _ = self.queues.backlog.look(name)
        return self.queues.claimer.claim(topic, node, limit, lease_ms)

    def claim(
        self, name: str = "q", node: str = "w", limit: int = 1, lease_ms: int | None = None
    ) -> list[dict[str, Any]]:
        return decoded(self.run(self.claim_nowait(name, node, limit, lease_ms)))

    def claimed(self, name: str = "q", limit: int = 1, **options: Any) -> list[int]:
        return [job["$seq"] for job in self.claim(name, limit=limit, **options)]

    def ack_nowait(self, name: str, *seqs: int, node: str = "w", tokens: tuple[str, ...] = ()) -> Pending[Settled]:
        return self.queues.settler.ack(name, node, seqs, tokens)

    def ack(self, name: str, *seqs: int, node: str = "w", tokens: tuple[str, ...] = ()) -> Settled:
        return self.run(self.ack_nowait(name, *seqs, node=node, tokens=tokens))

    def nack(self, name: str, *seqs: int, node: str = "w", tokens: tuple[str, ...] = (), delay_ms: int = 0) -> Settled:
        return self.run(self.queues.settler.nack(name, node, seqs, tokens, delay_ms))

    def extend(
        self, name: str, *seqs: int, node: str = "w", tokens: tuple[str, ...] = (), lease_ms: int = LONG_MS
    ) -> ExtendedJobs:
        return self.run(self.queues.settler.extend(name, node, seqs, tokens, lease_ms))

    def counters(self, name: str = "q") -> tuple[int, int, int]:
        """Ready, in flight, dead-lettered."""
        return tuple(self.queues.counters(self.topic(name)))  # type: ignore[return-value]

    def projection(self, name: str = "q") -> dict[str, Any]:
        """Who holds what, until when; what is delayed; how often everything was delivered."""
        topic, table = self.queues.backlog.look(name)
        seqs = self.seqs(name)
        return {
            "held": {seq: (lease.number, lease.node, lease.deadline) for seq, lease in sorted(table.held.items())},
            "delayed": dict(sorted(table.delayed.items())),
            "deliveries": {seq: table.deliveries(seq) if seq <= table.cursor else 0 for seq in seqs},
            "counters": tuple(self.queues.counters(topic)),
        }


class Connection:
    """A worker that jobs are pushed to."""

    def __init__(self, rig: QueueRig, name: str = "q", node: str = "w", limit: int = 1, lease_ms: int | None = None):
        self.jobs: list[dict[str, Any]] = []
        self.ended = 0
        self.unavailable: list[SegmentUnavailableError] = []
        self.room = True
        self.room_for: int | None = None
        """How many helpings fill it."""
        self.push = Push(
            rig.queues.pusher,
            rig.topic(name),
            node,
            limit,
            lease_ms,
            deliver=self._deliver,
            has_room=lambda: self.room,
            unavailable=self.unavailable.append,
            ended=self._end,
        )

    def _deliver(self, claimed: ClaimResult) -> None:
        self.jobs += decoded(claimed)
        if self.room_for is not None:
            self.room_for -= 1
            self.room = self.room_for > 0

    def _end(self) -> None:
        self.ended += 1

    def seqs(self) -> list[int]:
        """What has come since the last call."""
        jobs, self.jobs = self.jobs, []
        return [job["$seq"] for job in jobs]


def decoded(claimed: ClaimResult) -> list[dict[str, Any]]:
    """The jobs of a claim as a worker gets them."""
    jobs = [json.decode(job) for job in claimed.jobs]
    assert [job["$seq"] for job in jobs] == claimed.seqs
    return jobs
