"""Many workers at once, in orders that a seed decides: no job has two holders, none is lost, none is acked twice."""

import random
from typing import Any

import pytest

from tests.unit.features.queue.rig import QueueRig

WORKERS = ("a", "b", "c")


class Race:
    """Workers that do not wait for each other, nor for their own answers."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rig = QueueRig(seed=seed, wal_shards=1 + seed % 2, segment_max_events=8, cache_bytes=1)
        self.rig.queue(leases_durable=bool(seed & 1), claim_jitter_ms=5 if seed % 5 == 0 else 0)
        self.rig.disk.cached = seed % 3 != 0
        self.holder: dict[int, str] = {}
        self.written = 0
        self.acked: list[int] = []
        self.deleted: set[int] = set()

    def step(self) -> None:
        getattr(self, self.rng.choice(("write", "claim", "claim", "ack", "ack", "nack", "extend", "delete", "run")))()
        if self.rng.random() < 0.3:
            self.rig.runtime.turn()
        self.check()

    def check(self) -> None:
        """inv: 67"""
        topic, table = self.rig.queues.backlog.look("q")
        ready, in_flight, _ = self.rig.queues.counters(topic)
        assert ready >= 0
        assert ready + in_flight + len(table.delayed) == topic.count

    def run(self) -> None:
        self.rig.runtime.advance(self.rng.choice((0, 1, 7)))

    def write(self) -> None:
        count = self.rng.randint(1, 4)
        self.rig.write_nowait("q", *range(count))
        self.written += count

    def claim(self) -> None:
        node = self.rng.choice(WORKERS)

        def answered(done: Any) -> None:
            for seq in done.result().seqs:
                assert seq not in self.holder, f"{seq} is held by {self.holder[seq]} and {node}"
                self.holder[seq] = node

        self.rig.claim_nowait(node=node, limit=self.rng.randint(1, 5)).then(answered)

    def some(self, node: str) -> list[int]:
        held = [seq for seq, holder in self.holder.items() if holder == node]
        return self.rng.sample(held, min(len(held), self.rng.randint(1, 4)))

    def ack(self) -> None:
        node = self.rng.choice(WORKERS)
        seqs = self.some(node)

        def answered(done: Any) -> None:
            skipped = done.result().skipped
            assert set(skipped) <= self.deleted
            self.acked += [seq for seq in seqs if seq not in skipped]
            for seq in seqs:
                del self.holder[seq]

        for seq in seqs:
            self.holder[seq] = "nobody: it is being acked"
        self.rig.ack_nowait("q", *seqs, node=node).then(answered)

    def nack(self) -> None:
        node = self.rng.choice(WORKERS)
        seqs = self.some(node)
        for seq in seqs:
            del self.holder[seq]
        self.rig.queues.settler.nack("q", node, seqs, (), self.rng.choice((0, 0, 3)))

    def extend(self) -> None:
        node = self.rng.choice(WORKERS)
        self.rig.queues.settler.extend("q", node, self.some(node), (), 7_200_000)

    def delete(self) -> None:
        if self.rng.random() < 0.3:
            seq = self.rng.randint(1, self.written + 1)
            self.deleted.add(seq)
            self.rig.engine.delete_records("q", seqs=[seq])

    def finish(self) -> None:
        """Work off what is left."""
        self.rig.runtime.advance(50)
        for node in WORKERS:
            while seqs := [seq for seq, holder in self.holder.items() if holder == node]:
                for seq in seqs:
                    del self.holder[seq]
                done = self.rig.ack("q", *seqs, node=node)
                self.acked += [seq for seq in seqs if seq not in done.skipped]
        while True:
            claim = self.rig.claim_nowait(limit=50)
            self.rig.runtime.advance(10)
            if not claim.result().seqs:
                break
            assert self.rig.ack("q", *claim.result().seqs).skipped == []
            self.acked += claim.result().seqs


@pytest.mark.parametrize("seed", range(24))
def test_every_job_is_done_once_however_workers_race(seed: int) -> None:
    """inv: 64"""
    race = Race(seed)
    for _ in range(150):
        race.step()
    race.finish()
    assert race.rig.counters()[:2] == (0, 0)
    assert race.rig.topic("q").count == 0
    assert len(race.acked) == len(set(race.acked))
    assert set(race.acked) | race.deleted >= set(range(1, race.written + 1))
