"""Records that were acked when queued and whose write failed: pinned until a checkpoint has them, and no longer."""

from functools import partial

from driftq.engine.write.lost_writes import Losses
from driftq.model.tombstone import Hole, Reason
from driftq.model.topic_config import Durability, TopicConfig
from driftq.testing import CrashMode, EngineRig, FaultyDisk


class _Rig:
    """An engine whose log can be made to fail."""

    def __init__(self) -> None:
        self.fails = False
        self.rig = EngineRig(
            wrap=lambda disk: FaultyDisk(
                disk,
                forever=True,
                when=lambda operation, path: self.fails and operation == "pwritev" and "/wal/" in path,
            )
        )

    def put(self, name: str) -> None:
        """Create a topic whose next writes are acked when queued."""
        self.rig.write(name, config=TopicConfig(durability=Durability.DISK))

    def lose(self, name: str, *datas: object) -> None:
        """Write records whose ack goes out and whose frame does not reach the file."""
        self.fails = True
        self.rig.write(name, *datas)
        self.fails = False

    def synced(self, name: str) -> int:
        """Return how far a topic is on stable storage."""
        return self.rig.engine.synced_seq(self.rig.topic(name))


def _note_synced(lossy: _Rig, woken: list[int]) -> None:
    woken.append(lossy.synced("t"))


def test_a_checkpoint_ends_the_loss_of_a_failed_write() -> None:
    """proves: G-IO-11"""
    for durability in (Durability.DISK, Durability.MEMORY):
        lossy = _Rig()
        rig = lossy.rig
        rig.put("t", durability)
        rig.write("t", 1, 2)
        rig.runtime.advance(20)
        lossy.lose("t", 3, 4)
        rig.write("t", 5)
        rig.runtime.advance(20)
        assert lossy.synced("t") == 2
        woken: list[int] = []
        rig.engine.synced.add("t", partial(_note_synced, lossy, woken))
        assert rig.checkpoint()
        assert lossy.synced("t") == 5
        assert woken[-1] == 5
        assert rig.topic("t").in_flight.lost_from is None
        rig.crash(CrashMode.DROP)
        assert rig.seqs("t")[:5] == [1, 2, 3, 4, 5]


def test_the_checkpoint_is_taken_without_being_asked_for_within_seconds() -> None:
    """proves: G-IO-11"""
    lossy = _Rig()
    rig = lossy.rig
    lossy.put("t")
    lossy.lose("t", 1)
    rig.runtime.advance(100)
    assert lossy.synced("t") == 0
    rig.runtime.advance(7000)
    assert lossy.synced("t") == 1


def test_what_is_lost_after_a_capture_stays_lost_when_that_checkpoint_is_durable() -> None:
    lossy = _Rig()
    rig = lossy.rig
    lossy.put("t")
    lossy.lose("t", 1, 2)
    losses = rig.engine._commit_point.losses
    captured = losses.captured()
    rig.write("t", 3)
    lossy.lose("t", 4)
    losses.covered(captured)
    rig.runtime.advance(20)
    assert lossy.synced("t") == 2, "3 is synced, but who reads `synced_seq` counts on everything up to it"
    assert rig.checkpoint()
    assert lossy.synced("t") == 4
    assert not losses


def test_a_deleted_topic_keeps_no_loss() -> None:
    lossy = _Rig()
    rig = lossy.rig
    lossy.put("t")
    lossy.lose("t", 1)
    losses = rig.engine._commit_point.losses
    captured = losses.captured()
    assert captured
    rig.run(rig.engine.delete_topic("t"))
    losses.covered(captured)
    assert not losses


def test_a_loss_covers_all_frames_that_were_lost() -> None:
    rig = EngineRig()
    rig.put("t", Durability.DISK)
    losses, topic = Losses(), rig.topic("t")
    assert not losses
    losses.note(topic, 5, 6)
    losses.note(topic, 3, 4)
    assert (topic.in_flight.lost_from, topic.in_flight.lost_to, losses.captured()) == (3, 6, {topic: topic.head})


def test_a_jump_between_two_frames_of_one_run_is_a_loss_for_sure() -> None:
    """proves: G-TOMB-9"""
    lossy = _Rig()
    rig = lossy.rig
    rig.put("t", Durability.DISK)
    rig.write("t", 1, 2)
    lossy.lose("t", 3, 4)
    rig.write("t", 5)
    rig.runtime.advance(20)
    reserved = rig.topic("t").reserved
    rig.crash(CrashMode.DROP)
    sure, unsure = rig.topic("t").holes.all
    assert sure == Hole(3, 4, Reason.CRASH)
    assert unsure == Hole(6, reserved, Reason.CRASH, at_most=True)
    rig.checkpoint()
    rig.crash(CrashMode.DROP)
    assert rig.topic("t").holes.all == [sure, unsure], "a checkpoint keeps the difference"
    assert [gap.at_most for gap in (rig.page("t", 2).tombstone, rig.page("t", 5).tombstone) if gap] == [False, True]
