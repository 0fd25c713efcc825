"""Committed changes that cannot be applied, because a block they need cannot be read: the shard stops, reads go on."""

import errno
from collections.abc import Callable
from typing import Any

import pytest

from driftq.errors import ShardStoppedError
from driftq.model.topic import Durability
from driftq.seam.runtime import Pending
from driftq.testing import EngineRig
from tests.unit.engine.unreadable import Fault, filled

CLASSES = [Durability.MEMORY, Durability.DISK, Durability.FSYNC]
CHANGES: dict[str, Callable[[EngineRig], Pending[Any]]] = {
    "append": lambda rig: rig.write_nowait("t", 1, 2),
    "delete": lambda rig: rig.engine.delete_records("t", before_seq=4),
    "delete by seq": lambda rig: rig.engine.delete_records("t", seqs=[3, 12]),
    "config": lambda rig: rig.put_nowait("t", cap_records=21),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("durability", CLASSES)
def test_it_stops_the_shard_and_a_restart_finds_it_done(
    change: Callable[[EngineRig], Pending[Any]], durability: Durability
) -> None:
    """proves: G-IO-9"""
    fault = Fault(errno.EMFILE)
    rig = filled(fault, durability=durability, cap_records=24)
    fault.on = True
    answer = change(rig)
    rig.runtime.advance(50)
    with pytest.raises(ShardStoppedError, match=r"Too many open files; restart"):
        answer.result()
    for refused in CHANGES.values():
        with pytest.raises(ShardStoppedError):
            refused(rig)
    assert rig.read("t", 16)[0]["$seq"] == 17, "what is in memory is read as ever"
    fault.on = False
    assert [hole.reason for hole in rig.topic("t").holes.all] == []
    rig.kill()
    well = filled(Fault(errno.EMFILE), durability=durability, cap_records=24)
    well.run(change(well))
    well.kill()
    assert rig.walk("t")[0] == well.walk("t")[0]
    assert rig.write("t", 1).first_seq == well.write("t", 1).first_seq


def test_what_is_queued_behind_it_is_neither_acked_nor_shown_and_another_shard_goes_on() -> None:
    """proves: G-IO-9"""
    fault = Fault(errno.EMFILE)
    rig = EngineRig(wrap=fault.wrap, segment_max_events=8, cache_bytes=1, wal_shards=2)
    for name in ("one", "two", "three"):
        rig.put(name, cap_records=16 if name == "one" else 0)
    for _ in range(4):
        rig.write("one", *range(4))
    fault.on = True
    rig.hold_wal()
    answers = []
    for name in ("three", "one", "one", "three", "two"):
        answers.append(rig.write_nowait(name, 1))
        rig.runtime.run_until_idle()
    rig.release_wal()
    assert [isinstance(answer.error, ShardStoppedError) for answer in answers] == [False, True, True, True, False]
    assert rig.seqs("three") == [1]
    fault.on = False
    assert rig.write("two", 1).first_seq == 2
    rig.kill()
    assert (rig.topic("one").head, rig.seqs("one"), rig.seqs("three")) == (18, list(range(3, 19)), [1, 2])


def test_writes_gathered_in_the_same_turn_fail_with_it() -> None:
    """Each has a frame of its own, and the second would be given the seqs of the first."""
    fault = Fault(errno.EMFILE)
    rig = filled(fault, durability=Durability.MEMORY, cap_records=24)
    fault.on = True
    answers = [rig.write_nowait("t", 1, key=key) for key in "ab"]
    rig.runtime.advance(50)
    assert [type(answer.error) for answer in answers] == [ShardStoppedError] * 2
    fault.on = False
    rig.kill()
    assert rig.topic("t").head == 25
    assert rig.write("t", 1, key="a").deduped


def test_what_a_cap_left_half_way_is_finished_when_it_can_be() -> None:
    fault = Fault(errno.EMFILE)
    rig = filled(fault, cap_records=24)
    fault.on = True
    answer = rig.write_nowait("t", 1, 2)
    rig.runtime.run_until_idle()
    assert isinstance(answer.error, ShardStoppedError)
    rig.runtime.advance(1500)
    fault.on = False
    rig.runtime.advance(1500)
    topic = rig.topic("t")
    assert (topic.count, topic.earliest, topic.cap_lost) == (24, 3, 2)


def test_the_frames_of_a_turn_ask_for_no_other_turn_and_what_answers_write_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = EngineRig()
    rig.put("a", Durability.MEMORY)
    shards = rig.engine.journal.shards
    turns: list[int] = []
    flush = shards.flush

    def counted() -> None:
        turns.append(1)
        flush()

    monkeypatch.setattr(shards, "flush", counted)
    for n in range(3):
        rig.write_nowait("a", n)
    rig.runtime.run_until_idle()
    assert len(turns) == 1
    behind: list[object] = []
    rig.write_nowait("a", 3).then(lambda _: behind.append(rig.write_nowait("a", 4)))
    rig.runtime.run_until_idle()
    assert len(turns) == 3
    assert rig.seqs("a") == [1, 2, 3, 4, 5]
