"""Crashes while jobs are claimed, acked, given back, extended and moved to the dead letters.

Judged by notes (`noted`).
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec import json

from driftq.model.topic_config import Durability
from driftq.testing import ManualClock, SimDisk
from tests.crash.noted import SETTINGS, Image, Noting, try_all
from tests.unit.features.queue.rig import LONG_MS, QueueRig

pytestmark = pytest.mark.crash

Held = tuple[str, int, str]


@dataclass
class Notes:
    """What the workers of one queue know."""

    written: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    held: dict[int, Held] = field(default_factory=dict)
    """Node, deadline and lease id of every job that somebody was told he holds."""
    deliveries: dict[int, int] = field(default_factory=dict)
    unsure: set[int] = field(default_factory=set)
    """Something about them was asked and not answered yet."""
    claims: int = 0
    """Claims that were not answered yet."""
    ids: set[str] = field(default_factory=set)


class Workers(Noting[dict[str, Notes]]):
    """A server, and workers who write down what they were told."""

    def __init__(self, *, shards: int, seed: int | None) -> None:
        super().__init__({"plain": Notes(), "sure": Notes()})
        self.rig = QueueRig(settings=SETTINGS, disk=self.disk, clock=self.clock, seed=seed, wal_shards=shards)
        self.rig.put("dead", Durability.DISK)
        limits: dict[str, Any] = {"max_deliveries": 2, "dead_letter": "dead"}
        self.rig.queue("plain", **limits)
        self.rig.queue("sure", leases_durable=True, **limits)

    def write(self, name: str, count: int) -> None:
        pending = self.rig.write_nowait(name, *range(count))
        pending.then(
            lambda done: self.notes[name].written.update(range(done.result().first_seq, done.result().last_seq + 1))
        )

    def claim(self, name: str, node: str, limit: int, lease_ms: int = LONG_MS) -> None:
        notes = self.notes[name]
        notes.claims += 1

        def answered(done: Any) -> None:
            notes.claims -= 1
            for job in map(_decoded, done.result().jobs):
                seq = job["$seq"]
                notes.held[seq] = (node, job["deadline"], job["lease_id"])
                notes.deliveries[seq] = job["deliveries"]
                notes.ids.add(job["lease_id"])

        topic, _ = self.rig.queues.backlog.look(name)
        self.rig.queues.claimer.claim(topic, node, limit, lease_ms).then(answered)

    def _settle(
        self, name: str, seqs: tuple[int, ...], call: Callable[[], Any], note: Callable[[Notes, int], None]
    ) -> None:
        notes = self.notes[name]
        notes.unsure.update(seqs)

        def answered(done: Any) -> None:
            assert not done.result().skipped
            notes.unsure.difference_update(seqs)
            for seq in seqs:
                note(notes, seq)

        call().then(answered)

    def ack(self, name: str, node: str, *seqs: int) -> None:
        def note(notes: Notes, seq: int) -> None:
            notes.acked.add(seq)
            del notes.held[seq]

        self._settle(name, seqs, lambda: self.rig.queues.settler.ack(name, node, seqs, ()), note)

    def nack(self, name: str, node: str, *seqs: int, delay_ms: int = 0) -> None:
        def note(notes: Notes, seq: int) -> None:
            del notes.held[seq]

        self._settle(name, seqs, lambda: self.rig.queues.settler.nack(name, node, seqs, (), delay_ms), note)

    def extend(self, name: str, node: str, *seqs: int, lease_ms: int) -> None:
        deadline = self.clock.wall_ms() + lease_ms

        def note(notes: Notes, seq: int) -> None:
            notes.held[seq] = (node, deadline, notes.held[seq][2])

        self._settle(name, seqs, lambda: self.rig.queues.settler.extend(name, node, seqs, (), lease_ms), note)

    def settle(self) -> None:
        self.rig.runtime.run_until_idle()


def _decoded(job: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.decode(job)
    return found


def history(workers: Workers) -> None:
    """Both queues at once: overlapping claims and acks, a lease that runs out, dead letters, checkpoints."""
    for name in ("plain", "sure"):
        workers.write(name, 7)
    workers.settle()
    for name in ("plain", "sure"):
        workers.claim(name, "a", 2)
        workers.claim(name, "b", 2, lease_ms=1000)
    workers.settle()
    for name in ("plain", "sure"):
        workers.ack(name, "a", 1)
        workers.nack(name, "a", 2)
        workers.extend(name, "b", 3, lease_ms=500_000)
        workers.claim(name, "c", 1)
        workers.write(name, 3)
    workers.settle()
    workers.rig.checkpoint()
    workers.rig.runtime.advance(1001)
    for name in ("plain", "sure"):
        workers.claim(name, "c", 2)
    workers.settle()
    for name in ("plain", "sure"):
        held = sorted(seq for seq, (node, _, _) in workers.notes[name].held.items() if node == "c")
        workers.nack(name, "c", *held[:2])
        workers.ack(name, "b", 3)
        workers.settle()
        workers.claim(name, "d", 3)
        workers.rig.engine.checkpointer.run()
        workers.write(name, 2)
    workers.settle()
    for name in ("plain", "sure"):
        held = sorted(seq for seq, (node, _, _) in workers.notes[name].held.items() if node == "d")
        workers.ack(name, "d", *held[:1])
        workers.nack(name, "d", *held[1:2], delay_ms=60_000)
    workers.settle()
    workers.rig.runtime.advance(20)
    assert all(workers.rig.counters(name)[2] for name in ("plain", "sure")), "there are dead letters in this history"


def judge(image: Image[dict[str, Notes]], rig: QueueRig) -> None:
    """Hold the notes against what a server shows."""
    letters = rig.walk("dead")[0] if rig.engine.catalog.find("dead") is not None else []
    for name, notes in image.notes.items():
        if rig.engine.catalog.find(name) is None:
            assert not notes.written, f"{name} is gone"
            continue
        live = set(rig.seqs(name))
        dead = {
            int(letter["meta"]["$dead_letter_src_seq"])
            for letter in letters
            if letter["meta"]["$dead_letter_from"] == name
        }
        assert not live & notes.acked, f"{name}: acked jobs came back: {live & notes.acked}"
        lost = notes.written - notes.acked - notes.unsure - live - dead
        assert not lost, f"{name}: lost jobs: {lost}"
        held = _held(rig, name)
        if name == "plain":
            assert not held
        else:
            _judge_leases(image, notes, live, held, rig)


def _held(rig: QueueRig, name: str) -> dict[int, tuple[str, int]]:
    return {seq: (node, deadline) for seq, (_, node, deadline) in rig.projection(name)["held"].items()}


def _judge_leases(
    image: Image[dict[str, Notes]], notes: Notes, live: set[int], held: dict[int, tuple[str, int]], rig: QueueRig
) -> None:
    deliveries = rig.projection("sure")["deliveries"]
    for seq, (node, deadline, _) in notes.held.items():
        if seq in notes.unsure:
            continue
        if deadline >= image.wall_ms:
            assert held.get(seq) == (node, deadline), f"the lease on {seq} is {held.get(seq)}"
            assert deliveries[seq] == notes.deliveries[seq], f"{seq} was delivered {deliveries[seq]} times"
    strangers = held.keys() - notes.held.keys() - notes.unsure
    assert not strangers or notes.claims, f"nobody was told of leases on {strangers}"


def probe(image: Image[dict[str, Notes]], rig: QueueRig) -> None:
    """Everything that is free can be claimed, under a lease id that nobody has seen before, and be acked."""
    for name, notes in image.notes.items():
        if rig.engine.catalog.find(name) is None:
            continue
        before = _held(rig, name)
        free = set(rig.seqs(name)) - before.keys() - rig.projection(name)["delayed"].keys()
        jobs = rig.claim(name, node="probe", limit=1000)
        moved = free - {job["$seq"] for job in jobs}
        assert not moved & set(rig.seqs(name)), f"{name}: not to be had: {moved}"
        assert not {job["lease_id"] for job in jobs} & notes.ids, "a lease id came twice"
        if name == "plain":
            assert {job["deliveries"] for job in jobs} <= {1}
        assert rig.ack(name, *(job["$seq"] for job in jobs), node="probe").skipped == []
        assert set(rig.seqs(name)) == before.keys() | rig.projection(name)["delayed"].keys()


class Kept:
    """What a queue has to keep."""

    judge = staticmethod(judge)
    probe = staticmethod(probe)

    def recovered(self, image: Image[dict[str, Notes]], disk: SimDisk, rng: random.Random) -> QueueRig:
        rig = QueueRig(settings=SETTINGS, disk=disk, clock=ManualClock(image.wall_ms), wal_shards=rng.choice((1, 2, 3)))
        rig._lives = rng.getrandbits(32)
        rig.kill()
        return rig

    def disk_of(self, rig: QueueRig) -> SimDisk:
        return rig.disk

    def picture(self, rig: QueueRig) -> object:
        return {name: rig.projection(name) for name in ("plain", "sure") if rig.engine.catalog.find(name)}


@pytest.mark.parametrize(("shards", "seed"), [(1, None), (2, None), (1, 1), (2, 2)])
def test_a_crash_at_any_call_of_a_queue_keeps_its_promises(shards: int, seed: int | None) -> None:
    """proves: G-QUEUE-1, G-QUEUE-2, G-QUEUE-3, G-QUEUE-4, G-QUEUE-5"""
    workers = Workers(shards=shards, seed=seed)
    history(workers)
    try_all(workers.images, Kept(), seed)
