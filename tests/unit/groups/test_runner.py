"""A worker in the process: one effect per key, renewed leases, and a lost one that keeps nothing."""

import pytest

from driftq.groups.broker import Broker
from driftq.groups.consume_scope import Status
from driftq.groups.ports import Scope
from driftq.groups.registry import IdempotencyRegistry
from driftq.groups.runner import Runner
from driftq.model.envelope import Message
from driftq.seam.runtime import Pending
from tests.unit.failing import BugError, fail_once
from tests.unit.groups.rig import RegisteredRig


class _Work:
    """What the runner does, and what a test lets it do."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.waits: dict[str, Pending[bytes]] = {}
        self.error: Exception | None = None

    async def handle(self, message: Message) -> bytes:
        self.begun.append(message.value)
        if self.error is not None:
            raise self.error
        waiting = self.waits.get(message.value)
        return b"R" if waiting is None else await waiting


@pytest.fixture
def rig() -> RegisteredRig:
    rig = RegisteredRig()
    rig.create()
    return rig


def _runner(rig: RegisteredRig, work: _Work, *, lease_ms: int = 3000, concurrency: int = 1) -> Runner:
    return Runner(
        *(rig.broker, rig.registry, rig.engine_rig.runtime, work.handle),
        topic="t",
        group="g",
        owner="runner",
        lease_ms=lease_ms,
        concurrency=concurrency,
    )


def _status(rig: RegisteredRig, key: str) -> Status | None:
    entry = rig.registry.entry(Scope("", "t", "g", key))
    return None if entry is None else entry.status


def test_work_is_done_committed_and_acked(rig: RegisteredRig) -> None:
    work = _Work()
    rig.produce("keyed", idempotency_key="k")
    rig.produce("plain")
    _runner(rig, work)
    rig.run_all()
    assert work.begun == ["keyed", "plain"]
    assert rig.lag() == 0
    entry = rig.registry.entry(Scope("", "t", "g", "k"))
    assert entry is not None
    assert (entry.status, entry.result) == (Status.COMMITTED, b"R")


def test_work_that_is_done_already_is_not_done_again(rig: RegisteredRig) -> None:
    """inv1: 68"""
    work = _Work()
    rig.registry.begin_key(Scope("", "t", "g", "k"), "other", 30_000)
    rig.run(rig.registry.commit_key(Scope("", "t", "g", "k"), "other"))
    rig.produce("keyed", idempotency_key="k")
    _runner(rig, work)
    rig.run_all()
    assert (work.begun, rig.lag()) == ([], 0)


@pytest.mark.parametrize("key", ["k", ""])
def test_a_long_work_keeps_its_lease_and_is_handed_to_nobody_else(rig: RegisteredRig, key: str) -> None:
    work = _Work()
    work.waits["long"] = Pending()
    rig.produce("long", idempotency_key=key)
    _runner(rig, work, lease_ms=900)
    other = rig.consume(owner="other")
    rig.advance(10_000)
    assert (work.begun, other.take()) == (["long"], [])
    work.waits["long"].resolve(b"R")
    rig.run_all()
    assert rig.lag() == 0
    rig.advance(10_000)
    assert work.begun == ["long"]


def test_a_failure_is_recorded_and_tried_again(rig: RegisteredRig) -> None:
    work = _Work()
    work.error = RuntimeError("boom")
    rig.produce("v", idempotency_key="k", retry=(5, 1000, 0))
    runner = _runner(rig, work)
    rig.run_all()
    assert _status(rig, "k") is Status.FAILED
    work.error = None
    rig.advance(1500)
    assert (work.begun, _status(rig, "k"), rig.lag()) == (["v", "v"], Status.COMMITTED, 0)
    runner.close()


def test_a_lost_lease_is_nacked_and_what_comes_of_the_work_is_not_kept(rig: RegisteredRig) -> None:
    work = _Work()
    work.waits["v"] = Pending()
    rig.produce("v", idempotency_key="k", retry=(9, 60_000, 0))
    _runner(rig, work, lease_ms=900)
    rig.run_all()
    rig.registry.voided("t", "g")
    rig.advance(300)
    work.waits["v"].resolve(b"too late")
    rig.run_all()
    assert _status(rig, "k") is Status.FAILED
    assert rig.lag() == 1
    del work.waits["v"]
    other = rig.consume(owner="other")
    rig.advance(61_000)
    redelivered = other.take()
    assert len(work.begun) + len(redelivered) == 2
    errors = [found.last_error for found in redelivered]
    assert errors in ([], ["idem_lease_lost: idempotency: lease lost or expired"])


def test_no_more_messages_are_under_way_than_there_are_hands(rig: RegisteredRig) -> None:
    work = _Work()
    for value in "abcd":
        work.waits[value] = Pending()
    rig.produce(*"abcd")
    runner = _runner(rig, work, lease_ms=30_000, concurrency=2)
    rig.run_all()
    assert work.begun == ["a", "b"]
    work.waits["b"].resolve(b"")
    rig.run_all()
    assert work.begun == ["a", "b", "c"]
    runner.close()
    for value in "ac":
        work.waits[value].resolve(b"")
    rig.run_all()
    assert work.begun == ["a", "b", "c"], "it is closed"
    assert rig.lag() == 1


@pytest.mark.parametrize("key", ["k", ""])
def test_a_lease_that_could_not_be_renewed_once_is_renewed(
    rig: RegisteredRig, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    work = _Work()
    work.waits["long"] = Pending()
    rig.produce("long", idempotency_key=key)
    _runner(rig, work, lease_ms=900)
    other = rig.consume(owner="other")
    rig.run_all()
    fail_once(monkeypatch, *((IdempotencyRegistry, "renew_key") if key else (Broker, "extend")))
    with pytest.raises(BugError):
        rig.advance(10_000)
    rig.advance(10_000)
    assert other.take() == []
