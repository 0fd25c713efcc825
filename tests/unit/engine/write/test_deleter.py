"""Deletes: by seq, by tag, by both; permanent, silent, and only of what was there (http-v0 §10)."""

import pytest

from driftq.engine.read.tag_lookup import Match
from driftq.engine.write.deleter import Deleted, parse_match
from driftq.errors import InvalidRequestError, TopicNotFoundError
from driftq.model.topic_config import Durability
from driftq.system.runtime import Pending
from driftq.testing import EngineRig


@pytest.fixture
def rig() -> EngineRig:
    return EngineRig()


@pytest.mark.parametrize(
    ("match", "parsed"),
    [
        ("v", Match(b"v", False)),
        ("pre:*", Match(b"pre:*", False)),
        (["tag", "Eq", "v*"], Match(b"v*", False)),
        (["tag", "Glob", "p*"], Match(b"p", True)),
        (["tag", "Glob", "p**"], Match(b"p*", True)),
        (["tag", "Glob", "*"], Match(b"", True)),
        (["tag", "Eq", ""], Match(b"", False)),
    ],
)
def test_the_match_grammar(match: object, parsed: Match) -> None:
    assert parse_match(match) == parsed


@pytest.mark.parametrize(
    "match",
    [["tag", "Eq"], ["node", "Eq", "v"], ["tag", "Like", "v"], ["tag", "Glob", "v"], ["tag", "Eq", 1], 1, {}, []],
)
def test_what_is_no_match(match: object) -> None:
    with pytest.raises(InvalidRequestError):
        parse_match(match)


def test_a_delete_needs_a_selector_and_a_topic(rig: EngineRig) -> None:
    rig.put("t")
    with pytest.raises(InvalidRequestError):
        rig.delete("t")
    with pytest.raises(TopicNotFoundError):
        rig.delete("absent", before_seq=1)


def test_before_seq_removes_what_is_below_it_and_is_no_standing_floor(rig: EngineRig) -> None:
    rig.write("t", *range(5))
    answer = rig.delete("t", before_seq=3)
    assert (answer.deleted, answer.earliest_seq, answer.head_seq, answer.count, answer.payload) == (2, 3, 5, 3, 3)
    assert rig.delete("t", before_seq=3).deleted == 0
    assert rig.delete("t", before_seq=1000).deleted == 3
    rig.write("t", "later")
    assert rig.seqs("t") == [6]
    assert rig.page("t").tombstone is None


def test_a_glob_ends_at_its_star_and_a_bare_string_is_exact(rig: EngineRig) -> None:
    """inv: 29"""
    rig.write("t", 1, 2, 3, 4, 5, tags=["chat-42:x", "chat-420:x", "chat-42:", "pre:*", "pre:y"])
    assert rig.delete("t", match=["tag", "Glob", "chat-42:*"]).deleted == 2
    assert rig.seqs("t") == [2, 4, 5]
    assert rig.delete("t", match="pre:*").deleted == 1
    assert rig.seqs("t") == [2, 5]


def test_untagged_records_never_match_and_a_star_matches_every_tagged_one(rig: EngineRig) -> None:
    rig.write("t", 1, 2, 3, tags=[None, "", "a"])
    assert rig.delete("t", match="").deleted == 1
    assert rig.delete("t", match=["tag", "Glob", "*"]).deleted == 1
    assert rig.seqs("t") == [1]


def test_both_selectors_remove_only_what_both_select(rig: EngineRig) -> None:
    """inv: 31"""
    rig.write("t", *range(6), tags=["a", "b", "a", "b", "a", "b"])
    answer = rig.delete("t", before_seq=5, match="a")
    assert (answer.deleted, answer.earliest_seq) == (2, 2)
    assert rig.seqs("t") == [2, 4, 5, 6]
    answer = rig.delete("t", before_seq=3, match="b")
    assert (answer.deleted, answer.earliest_seq) == (1, 4)


def test_deleted_is_the_drop_in_count(rig: EngineRig) -> None:
    """inv: 32"""
    rig.write("t", *range(20), tags=["a", "b"] * 10)
    before = rig.topic("t").count
    first = rig.delete("t", match="a")
    again = rig.delete("t", match=["tag", "Glob", "*"])
    assert (first.deleted, again.deleted, again.count) == (10, 10, before - 20)


@pytest.mark.parametrize("capped", [0, 100])
def test_a_record_written_behind_a_delete_survives_it_also_in_replay(rig: EngineRig, capped: int) -> None:
    """inv: 30"""
    rig.put("t", cap_records=capped)
    rig.write("t", 1, tags=["a"])
    rig.hold_wal()
    delete = rig.engine.delete_records("t", match=parse_match("a"))
    write = rig.write_nowait("t", 2, tags=["a"])
    rig.runtime.run_until_idle()
    assert rig.seqs("t") == [1]
    rig.release_wal()
    assert (delete.result().deleted, write.result().first_seq) == (1, 2)
    assert rig.seqs("t") == [2]
    rig.crash()
    assert rig.seqs("t") == [2]


def test_a_delete_is_point_in_time_for_writes_under_way(rig: EngineRig) -> None:
    rig.put("t")
    rig.hold_wal()
    write = rig.write_nowait("t", 1, tags=["a"])
    rig.runtime.run_until_idle()
    delete = rig.engine.delete_records("t", match=parse_match("a"))
    rig.release_wal()
    assert (write.result().first_seq, delete.result().deleted) == (1, 0)
    assert rig.seqs("t") == [1]


def test_a_write_that_overtakes_a_delete_is_not_touched_by_it(rig: EngineRig) -> None:
    """The delete waits for a sync; a `disk` write behind it does not, and is there when the delete is applied.

    inv: 30
    """
    rig.put("t", Durability.DISK)
    rig.write("t", 1, tags=["a"])
    rig.hold_wal()
    delete = rig.engine.delete_records("t", match=parse_match("a"))
    assert rig.write("t", 2, tags=["a"]).first_seq == 2
    assert not delete.settled
    rig.release_wal()
    assert (delete.result().deleted, rig.seqs("t")) == (1, [2])
    rig.kill()
    assert rig.seqs("t") == [2]


def test_a_cap_that_is_under_way_takes_the_same_records_live_and_in_replay(rig: EngineRig) -> None:
    """The cap is in force when the write comes, and the delete before it is not: the write waits for it.

    proves: G-TOMB-6, G-TOMB-7
    """
    rig.put("t", Durability.DISK)
    rig.write("t", 1, 2, tags=["a", "b"])
    deletes: list[Pending[Deleted]] = []

    def called(operation: str, _: str) -> None:
        if operation == "sync" and not deletes:
            deletes.append(rig.engine.delete_records("t", match=parse_match("b")))
            rig.hold_wal()

    put = rig.put_nowait("t", Durability.DISK, cap_records=2)
    rig.disk.on_call = called
    rig.runtime.run_until_idle()
    (deleted,) = deletes
    assert put.settled
    assert not deleted.settled
    written = rig.write_nowait("t", 3)
    rig.runtime.run_loop_only()
    rig.release_wal()
    assert (deleted.result().deleted, written.result().first_seq) == (1, 3)
    before = (rig.seqs("t"), rig.topic("t").evict_floor)
    assert before == ([1, 3], 1)
    rig.kill()
    assert (rig.seqs("t"), rig.topic("t").evict_floor) == before


@pytest.mark.parametrize("durability", [Durability.DISK, Durability.FSYNC])
def test_an_acked_delete_survives_a_power_loss(rig: EngineRig, durability: Durability) -> None:
    rig.put("t", durability)
    rig.write("t", *range(40), tags=[f"a{value % 4}" for value in range(40)])
    rig.runtime.advance(2000)
    rig.checkpoint()
    rig.delete("t", match="a1")
    rig.delete("t", before_seq=3)
    kept = [seq for seq in range(3, 41) if (seq - 1) % 4 != 1]
    assert rig.seqs("t") == kept
    rig.crash()
    assert rig.seqs("t") == kept
    rig.checkpoint()
    rig.runtime.advance(2000)
    rig.crash()
    assert rig.seqs("t") == kept


def test_a_delete_that_empties_a_segment_removes_its_files(rig: EngineRig) -> None:
    rig.put("t")
    for block in range(4):
        rig.write("t", *range(16), tags=[f"s{block}"] * 16)
    rig.checkpoint()
    directory = f"/data/topics/{rig.topic('t').id:08X}"
    assert len([name for name in rig.disk.names(directory) if name.endswith(".data")]) == 4
    rig.delete("t", match="s1")
    rig.delete("t", before_seq=17)
    rig.checkpoint()
    rig.checkpoint()
    assert [name for name in rig.disk.names(directory) if name.endswith(".data")] == [
        "seg-0000000000000033.data",
        "seg-0000000000000049.data",
    ]
    rig.crash()
    assert rig.seqs("t") == list(range(33, 65))


def test_flags_are_set_on_disk_once_a_checkpoint_shows_the_delete(rig: EngineRig) -> None:
    """A record whose flag is set needs neither WAL nor checkpoint to stay away."""
    rig.put("t")
    rig.write("t", *range(16), tags=["a", "b"] * 8)
    rig.delete("t", match="a")
    rig.checkpoint()
    rig.runtime.run_until_idle()
    segment = rig.topic("t").segments[0]
    found = rig.engine.blocks.store.read_flags(rig.topic("t").id, 1, segment.index)
    assert found == [b"\xd5\0" * 8]
