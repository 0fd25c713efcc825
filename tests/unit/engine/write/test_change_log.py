"""Committed changes that cannot be applied, because a block they need is unavailable: the shard stops, reads go on.

A delete holds the blocks it needs from before it is logged, so this takes a segment that moves in between.
"""

import errno
from collections.abc import Callable
from typing import Any

import pytest

from driftq.engine.read.tag_lookup import Match
from driftq.errors import ShardStoppedError
from driftq.model.topic_config import Durability
from driftq.system.runtime import Pending
from driftq.testing import EngineRig
from tests.unit.engine.unreadable import Fault, filled, let_go

CLASSES = [Durability.MEMORY, Durability.DISK, Durability.FSYNC]
CHANGES: dict[str, Callable[[EngineRig], Pending[Any]]] = {
    "delete": lambda rig: rig.engine.delete_records("t", before_seq=4),
    "delete by seq": lambda rig: rig.engine.delete_records("t", seqs=[3, 12]),
    "delete by tag": lambda rig: rig.engine.delete_records("t", match=Match(b"a", False)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("durability", CLASSES)
def test_it_stops_the_shard_and_a_restart_finds_it_done(
    change: Callable[[EngineRig], Pending[Any]], durability: Durability
) -> None:
    """proves: G-IO-9"""
    fault = Fault(errno.EMFILE)
    rig = filled(fault, durability=durability, cap_records=24)
    rig.hold_wal()
    answer = change(rig)
    let_go(rig, "t")
    fault.on = True
    rig.release_wal()
    rig.runtime.advance(50)
    with pytest.raises(ShardStoppedError, match=r"Too many open files; .*restart"):
        answer.result()
    with pytest.raises(ShardStoppedError):
        rig.write_nowait("t", 1)
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
    rig = filled(fault, wal_shards=2, cap_records=24)
    for name in ("two", "three"):
        rig.put(name)
    rig.hold_wal()
    answers: list[Pending[Any]] = []
    for write in (
        lambda: rig.write_nowait("three", 1),
        lambda: CHANGES["delete"](rig),
        lambda: rig.write_nowait("t", 1),
        lambda: rig.write_nowait("three", 1),
        lambda: rig.write_nowait("two", 1),
    ):
        answers.append(write())
        rig.runtime.run_until_idle()
    let_go(rig, "t")
    fault.on = True
    rig.release_wal()
    assert [isinstance(answer.error, ShardStoppedError) for answer in answers] == [False, True, True, True, False]
    assert rig.seqs("three") == [1]
    fault.on = False
    assert rig.write("two", 1).first_seq == 2
    rig.kill()
    assert (rig.topic("t").head, rig.seqs("t"), rig.seqs("three")) == (25, list(range(4, 26)), [1, 2])


def test_the_frames_of_a_turn_ask_for_no_other_turn_and_what_answers_write_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = EngineRig()
    rig.put("a", Durability.MEMORY)
    shards = rig.engine.change_log.shards
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
