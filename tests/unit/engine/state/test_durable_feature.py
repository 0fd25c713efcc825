"""A feature with a frame kind and a checkpoint section of its own: the engine knows neither, and loses neither."""

import pytest
from msgspec import msgpack

from driftq.engine.state.topic import Topic
from driftq.errors import NewerFormatError, TopicNotFoundError
from driftq.testing import CrashMode, EngineRig

KIND = 1000


class Marks:
    """A toy: named marks per topic, last one wins, and how often a frame was applied."""

    name = "marks"
    kinds = frozenset({KIND})

    def __init__(self) -> None:
        self.marks: dict[int, dict[str, int]] = {}
        self.applied = 0

    def apply(self, kind: int, topic: Topic, ts: int, body: bytes) -> None:
        assert kind == KIND
        name, value = msgpack.decode(body, type=tuple[str, int])
        self.marks.setdefault(topic.id, {})[name] = value
        self.applied += 1

    def capture(self) -> bytes:
        return msgpack.encode(self.marks)

    def restore(self, section: bytes) -> None:
        self.marks = msgpack.decode(section, type=dict[int, dict[str, int]])

    def forget(self, topic: Topic) -> None:
        self.marks.pop(topic.id, None)


class Marked(EngineRig):
    """An engine with the toy in it."""

    def __init__(self, **changes: object) -> None:
        super().__init__(features=lambda: (Marks(),), **changes)  # type: ignore[arg-type]

    @property
    def marks(self) -> Marks:
        (feature,) = self.features
        assert isinstance(feature, Marks)
        return feature

    def mark(self, topic: str, name: str, value: int, *, sync: bool = True) -> None:
        body = msgpack.encode((name, value))
        self.run(self.engine.log(self.topic(topic), KIND, body, self.marks, sync=sync))

    def of(self, topic: str) -> dict[str, int]:
        return self.marks.marks.get(self.topic(topic).id, {})


@pytest.fixture
def rig() -> Marked:
    rig = Marked()
    rig.put("t")
    return rig


def test_a_frame_is_applied_at_its_commit_point(rig: Marked) -> None:
    rig.hold_wal()
    pending = rig.engine.log(rig.topic("t"), KIND, msgpack.encode(("a", 1)), rig.marks)
    rig.runtime.run_until_idle()
    assert (pending.settled, rig.of("t")) == (False, {})
    rig.release_wal()
    assert (pending.settled, rig.of("t")) == (True, {"a": 1})


@pytest.mark.parametrize("mode", CrashMode)
def test_it_survives_a_crash(rig: Marked, mode: CrashMode) -> None:
    rig.mark("t", "a", 1)
    rig.write("t", 1)
    rig.mark("t", "a", 2)
    rig.crash(mode, 3)
    assert rig.of("t") == {"a": 2}


def test_it_survives_a_checkpoint_and_a_frame_counts_once(rig: Marked) -> None:
    rig.mark("t", "a", 1)
    rig.checkpoint()
    rig.mark("t", "b", 2)
    rig.crash()
    assert rig.of("t") == {"a": 1, "b": 2}
    assert rig.marks.applied == 1, "only the frame behind the checkpoint was replayed"
    rig.restart()
    assert (rig.of("t"), rig.marks.applied) == ({"a": 1, "b": 2}, 0)


def test_a_frame_that_overtook_the_mark_of_a_checkpoint_counts_once(rig: Marked) -> None:
    rig.runtime.hold("driftq-files")
    rig.engine.checkpointer.run()
    rig.runtime.run_until_idle()
    rig.mark("t", "a", 1)
    rig.runtime.release("driftq-files")
    rig.runtime.run_until_idle()
    rig.crash()
    assert (rig.of("t"), rig.marks.applied) == ({"a": 1}, 0)


def test_one_that_is_not_synced_is_lost_with_power_and_not_with_the_process(rig: Marked) -> None:
    rig.mark("t", "a", 1, sync=False)
    rig.kill()
    assert rig.of("t") == {"a": 1}
    rig.mark("t", "b", 2, sync=False)
    rig.crash()
    assert rig.of("t") == {"a": 1}


def test_it_hears_of_a_topics_deletion_live_and_in_replay(rig: Marked) -> None:
    rig.mark("t", "a", 1)
    rig.put("u")
    rig.mark("u", "a", 1)
    rig.checkpoint()
    rig.run(rig.engine.delete_topic("t"))
    assert list(rig.marks.marks) == [rig.topic("u").id]
    rig.crash()
    assert list(rig.marks.marks) == [rig.topic("u").id]
    rig.put("t")
    assert rig.of("t") == {}


def test_a_frame_behind_a_deletion_is_applied_nowhere(rig: Marked) -> None:
    rig.hold_wal()
    topic = rig.topic("t")
    rig.engine.delete_topic("t")
    late = rig.engine.log(topic, KIND, msgpack.encode(("a", 1)), rig.marks)
    rig.release_wal()
    with pytest.raises(TopicNotFoundError):
        late.result()
    assert rig.marks.marks == {}
    rig.crash()
    assert rig.marks.marks == {}


def test_a_version_that_does_not_know_the_feature_refuses_to_start(rig: Marked) -> None:
    rig.mark("t", "a", 1)
    rig.runtime.stop()
    with pytest.raises(NewerFormatError, match="1000"):
        EngineRig(disk=rig.disk.fork())
    rig.kill()
    rig.checkpoint()
    with pytest.raises(NewerFormatError, match="marks"):
        EngineRig(disk=rig.disk.fork())
    rig.kill()
    assert rig.of("t") == {"a": 1}
