"""The registry on an engine: what it logs, what survives, and that no work is committed twice."""

from typing import Any

import pytest

from driftq.errors import DriftQError, InvalidRequestError, PayloadTooLargeError, PreconditionError
from driftq.features.broker.idempotency.consumed_keys import LeaseHeldError, Status
from driftq.features.broker.idempotency.registry import IdempotencyRegistry
from driftq.features.broker.protocols import DeliveryKey, KeyOwner
from driftq.model.broker_settings import BrokerSettings
from driftq.model.message import Envelope, Message
from driftq.model.topic_config import Durability
from driftq.testing import CrashMode, EngineRig, FaultyDisk

WORK = KeyOwner("", "t", "g", "k")
MESSAGE = Message("v", envelope=Envelope(idempotency_key="k"))


class _Groups:
    """A broker with one topic."""

    def __init__(self) -> None:
        self.done: set[int] = set()
        self.extended: list[tuple[DeliveryKey, str, int]] = []
        self.refuses = False

    def partitions(self, topic: str) -> int:
        if topic not in ("t", "t2"):
            raise InvalidRequestError("topic does not exist")
        return 1

    def is_done(self, _topic: str, _group: str, offset: int) -> bool:
        return offset in self.done

    def extend(self, place: DeliveryKey, owner: str, lease_ms: int) -> int:
        if self.refuses:
            raise PreconditionError("not owner")
        self.extended.append((place, owner, lease_ms))
        return 0


class _Rig(EngineRig):
    def __init__(self, **options: Any) -> None:
        self.groups = _Groups()
        super().__init__(features=lambda: (IdempotencyRegistry(BrokerSettings()),), **options)

    def start(self) -> None:
        super().start()
        self.registry.bind(self.engine, self.groups)

    @property
    def registry(self) -> IdempotencyRegistry:
        (found,) = self.features
        assert isinstance(found, IdempotencyRegistry)
        return found

    def commit(self, owner: str = "a", result: bytes = b"") -> None:
        self.run(self.registry.mark_success("t", "g", MESSAGE, owner, result))


@pytest.fixture
def rig() -> _Rig:
    rig = _Rig()
    rig.put("@t")
    return rig


@pytest.mark.parametrize("life", ["crash", "restart", "checkpoint"])
def test_a_commit_survives_with_its_result_and_a_lease_does_not(rig: _Rig, life: str) -> None:
    """inv1: 68, 69"""
    assert rig.registry.begin("t", "g", MESSAGE, "a").already_done is False
    rig.commit(result=b"done")
    rig.registry.begin_key(WORK._replace(key="held"), "a", 30_000)
    rig.registry.begin_key(WORK._replace(key="failed"), "a", 30_000)
    rig.run(rig.registry.fail_key(WORK._replace(key="failed"), "a", "boom"))
    if life == "checkpoint":
        rig.checkpoint()
    if life == "restart":
        rig.restart()
    else:
        rig.crash(CrashMode.DROP)
    assert rig.registry.begin("t", "g", MESSAGE, "b")[:2] == (True, b"done")
    assert rig.registry.begin_key(WORK._replace(key="held"), "b", 30_000).already_done is False
    failed = rig.registry.entry(WORK._replace(key="failed"))
    assert failed is not None
    assert (failed.status, failed.last_error) == (Status.FAILED, "boom")


def test_of_a_topic_that_does_not_last_nothing_is_kept(rig: _Rig) -> None:
    rig.put("@t2", Durability.EPHEMERAL)
    scope = WORK._replace(topic="t2")
    rig.registry.begin_key(scope, "a", 30_000)
    rig.run(rig.registry.commit_key(scope, "a"))
    rig.registry.end_produce("", "t2", "k", rig.clock.wall_ms(), 0)
    assert rig.registry.begin_key(scope, "b", 30_000).already_done is True
    rig.restart()
    assert rig.registry.begin_key(scope, "b", 30_000).already_done is False
    assert rig.registry.begin_produce("", "t2", "k") is None


def test_of_a_commit_under_way_nobody_else_gets_the_key(rig: _Rig) -> None:
    rig.registry.begin("t", "g", MESSAGE, "a", 250)
    rig.hold_wal()
    under_way = rig.registry.mark_success("t", "g", MESSAGE, "a", b"first")
    rig.runtime.run_until_idle()
    rig.clock.advance(10_000)
    with pytest.raises(LeaseHeldError):
        rig.registry.begin("t", "g", MESSAGE, "b")
    assert not under_way.settled
    rig.release_wal()
    rig.run(under_way)
    assert rig.registry.begin("t", "g", MESSAGE, "b")[:2] == (True, b"first")


def test_a_commit_that_cannot_be_logged_is_none_and_the_key_is_free_when_its_lease_ends() -> None:
    armed = False
    rig = _Rig(
        wrap=lambda disk: FaultyDisk(
            disk, when=lambda operation, path: armed and operation == "pwritev" and "wal-" in path
        )
    )
    rig.put("@t")
    rig.registry.begin("t", "g", MESSAGE, "a", 250)
    armed = True
    with pytest.raises(DriftQError):
        rig.commit()
    assert rig.registry.check("t", "g", MESSAGE) is Status.PENDING
    rig.clock.advance(250)
    assert rig.registry.begin("t", "g", MESSAGE, "b").already_done is False


def test_a_commit_of_what_is_committed_is_a_success_that_changes_nothing(rig: _Rig) -> None:
    rig.registry.begin("t", "g", MESSAGE, "a")
    rig.commit(result=b"first")
    rig.commit("b", b"second")
    assert rig.registry.begin("t", "g", MESSAGE, "c").prior_result == b"first"


def test_a_renewal_extends_the_delivery_too_while_there_is_one(rig: _Rig) -> None:
    rig.registry.delivered(WORK, "a", rig.clock.wall_ms() + 2000, 3, 7)
    until = rig.registry.renew("t", "g", MESSAGE, "a", 90_000)
    assert until == rig.clock.wall_ms() + 90_000
    assert rig.groups.extended == [(DeliveryKey("t", "g", 3, 7), "a", 90_000)]
    rig.groups.refuses = True
    assert rig.registry.renew("t", "g", MESSAGE, "a", 60_000) == rig.clock.wall_ms() + 60_000


def test_what_cannot_be_meant_is_refused(rig: _Rig) -> None:
    for lease_ms in (249, 600_001, -1):
        with pytest.raises(InvalidRequestError, match="idempotency: invalid lease duration"):
            rig.registry.begin("t", "g", MESSAGE, "a", lease_ms)
    with pytest.raises(InvalidRequestError, match="no idempotency key"):
        rig.registry.begin("t", "g", Message("v"), "a")
    with pytest.raises(InvalidRequestError, match="topic does not exist"):
        rig.registry.begin("nowhere", "g", MESSAGE, "a")
    rig.registry.begin("t", "g", MESSAGE, "a", 600_000)
    with pytest.raises(PayloadTooLargeError):
        rig.commit(result=bytes((64 << 10) + 1))
    rig.commit(result=bytes(64 << 10))


def test_a_produced_key_is_busy_then_known_and_free_when_its_window_is_over(rig: _Rig) -> None:
    """inv1: 63, 64, 67"""
    registry = rig.registry
    assert registry.begin_produce("", "t", "k") is None
    with pytest.raises(InvalidRequestError, match="idempotency: key already in-flight"):
        registry.begin_produce("", "t", "k")
    registry.end_produce("", "t", "k", None)
    assert registry.begin_produce("", "t", "k") is None
    registry.end_produce("", "t", "k", rig.clock.wall_ms(), 0)
    rig.clock.advance(300_000)
    rig.restart()
    assert rig.registry.begin_produce("", "t", "k") == 0
    rig.clock.advance(300_000)
    assert rig.registry.begin_produce("", "t", "k") is None


def test_how_a_key_stands_follows_deliveries_acks_and_nacks(rig: _Rig) -> None:
    now = rig.clock.wall_ms()
    registry = rig.registry
    registry.delivered(WORK, "a", now + 100, 0, 0)
    assert registry.standing(WORK, now).holder == "a"
    registry.settling(WORK)
    registry.failed(WORK, "boom", now)
    registry.settled(WORK)
    assert registry.standing(WORK, now) == (False, None)
    registry.delivered(WORK, "b", now + 100, 0, 0)
    registry.committed(WORK, now)
    assert registry.standing(WORK, now).committed
    rig.groups.done.add(0)
    rig.clock.advance(700_000)
    registry.sweep()
    assert registry.check("t", "g", MESSAGE) is None
