"""Waiters for syncs: called when `synced_seq` of their topic has moved, and not otherwise."""

from driftq.model.topic_config import Durability, TopicConfig
from driftq.testing import EngineRig


def _waiting(rig: EngineRig, name: str) -> list[int]:
    seen: list[int] = []

    def look() -> None:
        topic = rig.engine.catalog.find(name)
        seen.append(-1 if topic is None else rig.engine.synced_seq(topic))

    rig.engine.synced.add(name, look)
    return seen


def test_a_sync_wakes_those_who_wait_for_its_topic_only() -> None:
    rig = EngineRig()
    for name in ("a", "b"):
        rig.write(name, config=TopicConfig(durability=Durability.DISK))
    a, b = _waiting(rig, "a"), _waiting(rig, "b")
    rig.write("a", 1, 2)
    assert a == []
    rig.runtime.advance(10)
    assert a == [2]
    assert rig.engine.synced_seq(rig.topic("b")) == 0
    rig.write("a", 3)
    rig.runtime.advance(10)
    assert a == [2, 3]
    assert 0 not in b[1:], "told once of nothing, at most"


def test_an_fsync_write_wakes_although_its_answer_has_looked_first() -> None:
    rig = EngineRig()
    rig.put("a")
    seen = _waiting(rig, "a")
    written = rig.write_nowait("a", 1)
    answered: list[int] = []
    written.then(lambda _: answered.append(rig.engine.synced_seq(rig.topic("a"))))
    rig.run(written)
    assert answered == [1]
    assert seen[-1] == 1


def test_the_end_of_a_topic_wakes_them_too() -> None:
    rig = EngineRig()
    rig.put("a")
    rig.runtime.advance(20)
    seen = _waiting(rig, "a")
    rig.run(rig.engine.delete_topic("a"))
    assert seen[-1] == -1


def test_nobody_is_called_who_has_gone() -> None:
    rig = EngineRig()
    rig.put("a", Durability.DISK)
    called: list[int] = []

    def waiter() -> None:
        called.append(1)

    rig.engine.synced.add("a", waiter)
    rig.engine.synced.discard("a", waiter)
    rig.write("a", 1)
    rig.runtime.advance(20)
    assert called == []
