"""Copies that have expired stay so over a crash, though their times are not logged."""

from typing import Any

import pytest

from driftq.engine.engine import Engine
from driftq.engine.state.topic import Topic
from driftq.features.router.destination import Inflow
from driftq.features.router.router_frames import ROUTER_MARK
from driftq.system.runtime import Pending
from driftq.testing import ServerRig
from tests.unit.failing import BugError, fail_once
from tests.unit.features.router.routed_rig import put_router, put_topic, values


def _with_a_copy_that_ages() -> ServerRig:
    rig = ServerRig()
    put_topic(rig, "a")
    put_topic(rig, "b", ttl_ms=10_000)
    put_router(rig, "r", "a", "b")
    rig.write("a", 1)
    assert values(rig, "b") == [1]
    return rig


def test_a_copy_that_was_seen_to_expire_does_not_come_back() -> None:
    rig = _with_a_copy_that_ages()
    rig.advance(12_000)
    rig.write("a", 2)
    assert values(rig, "b") == [2]
    rig.advance(1000)
    earliest = rig.ok("GET", "/v0/topics/b")["earliest_seq"]
    rig.crash()
    assert values(rig, "b") == [2]
    assert rig.ok("GET", "/v0/topics/b")["earliest_seq"] == earliest
    assert rig.diff("b")["tombstone"]["reason"] == "ttl"


def test_a_dest_without_a_ttl_gets_no_frame_for_its_copies() -> None:
    rig = ServerRig()
    put_topic(rig, "a", "b")
    put_router(rig, "r", "a", "b")
    rig.write("a", 1)
    before = rig.server.engine.shards.all[0].counters.frames
    assert values(rig, "b") == [1]
    rig.advance(5000)
    assert rig.server.engine.shards.all[0].counters.frames == before


def test_a_stamp_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = _with_a_copy_that_ages()
    fail_once(monkeypatch, Inflow, "heading")
    with pytest.raises(BugError):
        rig.advance(2000)
    logged: list[int] = []
    log = Engine.log

    def note(engine: Engine, topic: Topic, kind: int, *rest: Any, **options: Any) -> Pending[None]:
        logged.append(kind)
        return log(engine, topic, kind, *rest, **options)

    monkeypatch.setattr(Engine, "log", note)
    rig.advance(1000)
    assert logged == [ROUTER_MARK]
