"""Crashes while keyed messages are produced, worked on, committed and acked: no work is done twice, none is forgotten.

Judged by notes (`noted`).
"""

from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from msgspec import to_builtins

from driftq.errors import InvalidRequestError
from driftq.features.broker.idempotency.consumed_keys import Status
from driftq.features.broker.protocols import DeliveryKey, KeyOwner, Produced
from driftq.system.runtime import Pending
from driftq.testing import CrashMode
from tests.crash.brokered import KeptByBroker
from tests.crash.noted import SETTINGS, Image, Noting, try_all
from tests.unit.features.broker.rig import RegisteredRig, message

pytestmark = pytest.mark.crash

KEYS = 6


@dataclass
class Notes:
    """What producers and workers know, by key."""

    created: bool = False
    produced: set[str] = field(default_factory=set)
    asked: dict[str, set[bytes]] = field(default_factory=dict)
    """Results that somebody tried to commit; an ack has none."""
    committed: dict[str, bytes] = field(default_factory=dict)
    """The result of the first commit that was answered."""
    failed: set[str] = field(default_factory=set)


class Party(Noting[Notes]):
    """A broker with its registry, and people who write down what they were told."""

    def __init__(self, *, shards: int, seed: int | None) -> None:
        super().__init__(Notes())
        self.rig = RegisteredRig(settings=SETTINGS, disk=self.disk, clock=self.clock, seed=seed, wal_shards=shards)

    def create(self) -> None:
        def answered(_: Pending[int]) -> None:
            self.notes.created = True

        self.rig.broker.create_topic("t").then(answered)

    def produce(self, *keys: str) -> None:
        """Each twice at once: the second is refused while the first is under way, or a duplicate."""
        for key in keys:

            def answered(done: Pending[Produced], key: str = key) -> None:
                done.result()
                self.notes.produced.add(key)

            for _ in range(2):
                with suppress(InvalidRequestError):  # the key is in flight
                    self.rig.broker.produce("t", message(key, idempotency_key=key)).then(answered)

    def commit(self, key: str, result: bytes) -> None:
        registry, notes = self.rig.registry, self.notes
        registry.begin_key(_scope(key), "a", 60_000)
        notes.asked.setdefault(key, set()).add(result)

        def answered(done: Pending[None]) -> None:
            done.result()
            notes.committed.setdefault(key, result)

        registry.commit_key(_scope(key), "a", result).then(answered)

    def ack(self, key: str, offset: int) -> None:
        notes = self.notes
        notes.asked.setdefault(key, set()).add(b"")

        def answered(done: Pending[None]) -> None:
            done.result()
            notes.committed.setdefault(key, b"")

        self.rig.broker.ack(DeliveryKey("t", "g", 0, offset), "a").then(answered)

    def fail(self, key: str) -> None:
        registry, notes = self.rig.registry, self.notes
        registry.begin_key(_scope(key), "a", 60_000)

        def answered(done: Pending[None]) -> None:
            done.result()
            notes.failed.add(key)

        registry.fail_key(_scope(key), "a", "boom").then(answered)

    def settle(self) -> None:
        self.rig.run_all()


def _scope(key: str) -> KeyOwner:
    return KeyOwner("", "t", "g", key)


def history(party: Party) -> None:
    """Commits before and behind an ack and before any message, failures, and a checkpoint between."""
    party.create()
    party.settle()
    party.produce("k0", "k1", "k2")
    party.settle()
    party.commit("early", b"before its message")
    consumer = party.rig.consume(credit=0, lease_ms=60_000)
    party.settle()
    party.commit("k0", b"helper first")
    party.ack("k0", 0)
    party.ack("k1", 1)
    party.settle()
    party.fail("k2")
    party.produce("k3", "early")
    party.settle()
    party.rig.engine_rig.checkpoint()
    party.commit("k2", b"second try")
    party.produce("k0", "k4")
    party.settle()
    party.commit("k3", b"not acked")
    party.ack("k4", 5)
    party.settle()
    party.rig.engine_rig.checkpoint()
    party.produce("k5")
    party.settle()
    consumer.close()
    party.settle()


def judge(image: Image[Notes], rig: RegisteredRig) -> None:
    """Hold the notes against what a registry and a broker show."""
    notes = image.notes
    if "t" not in rig.broker.topics():
        assert not notes.created, "the topic is gone"
        return
    for key, result in notes.committed.items():
        begun = rig.registry.begin_key(_scope(key), "other", 60_000)
        assert begun.already_done, f"{key} was committed, and somebody may do it again"
        assert begun.prior_result == result, f"{key} has another result"
    for key, results in notes.asked.items():
        entry = rig.registry.entry(_scope(key))
        if entry is not None and entry.status is Status.COMMITTED:
            assert entry.result in results, f"{key} has a result that nobody gave"
    for key in notes.failed - notes.asked.keys():
        assert rig.registry.entry(_scope(key)) is not None, f"the failure of {key} is forgotten"


def probe(image: Image[Notes], rig: RegisteredRig) -> None:
    """Producers try again: each key is one message. And nothing that is committed is handed out."""
    if "t" not in rig.broker.topics():
        return
    keys = [*(f"k{number}" for number in range(KEYS)), "early"]
    for key in keys:
        (made,) = rig.produce(key, idempotency_key=key)
        assert made.duplicate or key not in image.notes.produced, f"{key} was stored twice"
    stored = [record["data"]["value"] for record in rig.engine_rig.walk("@t")[0]]
    assert sorted(stored) == sorted(keys), "each key is one message"
    came = {found.message.value for found in rig.consume(credit=0, lease_ms=60_000).take()}
    assert not came & image.notes.committed.keys(), "work that is done was handed out"
    assert came >= set(keys) - image.notes.asked.keys(), "work that nobody has done never came"


class Kept(KeptByBroker[Notes]):
    """What the registry has to keep."""

    rig = RegisteredRig
    judge = staticmethod(judge)
    probe = staticmethod(probe)

    @staticmethod
    def picture(rig: RegisteredRig) -> object:
        return to_builtins(rig.registry.produced.capture())


@pytest.mark.parametrize(("shards", "seed"), [(1, None), (2, 1)])
def test_a_crash_at_any_call_commits_no_work_twice_and_forgets_none(shards: int, seed: int | None) -> None:
    """proves: G-GROUP-3; inv1: 63, 66, 68"""
    party = Party(shards=shards, seed=seed)
    history(party)
    try_all(party.images, Kept(), seed, CrashMode.DROP, least=30)
