"""Floors, caps and TTL: what a topic lets go, and what its numbers say about it (http-v0 §4.3-§4.5, §20)."""

import pytest

from driftq.engine.write.appender import AppendResult
from driftq.errors import RecordTooLargeError, TopicFullError
from driftq.model.tombstone import Reason
from driftq.model.topic_config import Discard, Durability
from driftq.system.runtime import Pending
from driftq.testing import EngineRig


@pytest.fixture
def rig() -> EngineRig:
    return EngineRig()


def numbers(rig: EngineRig, name: str = "t") -> tuple[int, int, int, int]:
    """Head, earliest, count and bytes, as a caller is told."""
    topic = rig.topic(name)
    return topic.head, topic.earliest, topic.count, topic.payload


def test_the_first_write_starts_at_seq_1_and_seqs_are_contiguous(rig: EngineRig) -> None:
    """inv: 1"""
    first, second = rig.write("t", 1, 2, 3), rig.write("t", 4)
    assert (first.first_seq, first.last_seq, first.count) == (1, 3, 3)
    assert (second.first_seq, second.last_seq, second.head_seq) == (4, 4, 4)


def test_an_empty_topic_has_nothing_before_its_first_seq(rig: EngineRig) -> None:
    rig.put("t")
    assert numbers(rig) == (0, 1, 0, 0)
    page = rig.page("t")
    assert (page.caught_up, page.lag, page.tombstone) == (True, 0, None)


@pytest.mark.parametrize("durability", Durability)
def test_a_record_cap_evicts_the_oldest_and_says_so(rig: EngineRig, durability: Durability) -> None:
    """inv: 11, 12"""
    rig.put("t", durability, cap_records=3)
    for value in range(6):
        rig.write("t", value)
    assert numbers(rig) == (6, 4, 3, 3)
    records, tombstones = rig.walk("t")
    assert [record["$seq"] for record in records] == [4, 5, 6]
    assert tombstones == [
        {
            "$type": "tombstone",
            "$seq": 4,
            "gap_from": 1,
            "gap_to": 3,
            "reason": "cap",
            "missed_estimate": 3,
            "earliest_seq": 4,
            "head_seq": 6,
        }
    ]


def test_a_deleted_prefix_makes_room_and_leaves_no_tombstone(rig: EngineRig) -> None:
    """inv: 13"""
    rig.put("t", cap_records=4)
    rig.write("t", 1, 2, 3, 4)
    rig.delete("t", before_seq=3)
    rig.write("t", 5)
    rig.write("t", 6)
    assert rig.walk("t")[1] == []
    assert rig.seqs("t") == [3, 4, 5, 6]


def test_overflow_behind_a_middle_delete_evicts_exactly_what_is_too_much(rig: EngineRig) -> None:
    """inv: 14"""
    rig.put("t", cap_records=4)
    rig.write("t", *range(4), tags=["a", "b", "b", "a"])
    rig.delete("t", match="b")
    rig.write("t", 5, 6, 7)
    assert rig.seqs("t") == [4, 5, 6, 7]
    assert rig.topic("t").evict_floor == 2
    assert rig.page("t", 0).tombstone is not None
    assert rig.page("t", 1).tombstone is None


def test_both_caps_evict_the_fewest_records_that_satisfy_both(rig: EngineRig) -> None:
    rig.put("t", cap_records=3, cap_bytes=10)
    rig.write("t", b'"xxxxxx"', 1, 2)
    assert rig.seqs("t") == [1, 2, 3]
    rig.write("t", 3)
    assert (rig.seqs("t"), rig.topic("t").payload) == ([2, 3, 4], 3)
    rig.write("t", b'"xxxxxxx"')
    assert (rig.seqs("t"), rig.topic("t").payload) == ([4, 5], 10)


def test_a_write_may_evict_a_part_of_itself_or_all_of_it(rig: EngineRig) -> None:
    rig.put("t", cap_records=2)
    answer = rig.write("t", *range(5))
    assert (answer.first_seq, answer.last_seq) == (1, 5)
    assert rig.seqs("t") == [4, 5]
    rig.put("u", cap_bytes=5)
    answer = rig.write("u", b'"far too long"')
    assert (answer.first_seq, answer.head_seq) == (1, 1)
    assert numbers(rig, "u") == (1, 2, 0, 0)


def test_a_record_is_delivered_at_its_ttl_and_gone_one_millisecond_later(rig: EngineRig) -> None:
    """inv: 16"""
    rig.put("t", ttl_ms=100)
    rig.write("t", 1)
    rig.clock.advance(100)
    assert rig.seqs("t") == [1]
    rig.clock.advance(1)
    page = rig.page("t")
    assert (page.size, page.caught_up) == (0, True)
    assert page.tombstone is not None
    assert page.tombstone.reason is Reason.TTL
    assert numbers(rig) == (1, 2, 0, 0)


def test_ttl_takes_a_part_of_a_block_and_leaves_the_rest(rig: EngineRig) -> None:
    rig.put("t", ttl_ms=100)
    for value in range(5):
        rig.write("t", value)
        rig.clock.advance(30)
    assert rig.seqs("t") == [3, 4, 5]
    rig.clock.advance(30)
    assert rig.seqs("t") == [4, 5]


def test_what_was_deleted_before_it_aged_out_is_never_a_tombstone(rig: EngineRig) -> None:
    """inv: 15"""
    rig.put("t", ttl_ms=100)
    rig.write("t", 1, 2, 3)
    rig.delete("t", before_seq=3)
    rig.clock.advance(50)
    rig.write("t", 4)
    rig.clock.advance(60)
    tombstone = rig.page("t").tombstone
    assert tombstone is not None
    assert (rig.topic("t").evict_floor, tombstone.gap_from, tombstone.gap_to) == (4, 1, 3)
    rig.put("u", ttl_ms=100)
    rig.write("u", 1, 2)
    rig.delete("u", before_seq=3)
    rig.clock.advance(1000)
    assert rig.page("u").tombstone is None
    rig.restart()
    assert rig.page("u").tombstone is None


def test_a_gap_with_two_causes_is_mixed_and_each_cause_reaches_its_own_cursors(rig: EngineRig) -> None:
    rig.put("t", ttl_ms=10_000, cap_records=3)
    rig.write("t", 1, 2, 3, 4)
    rig.clock.advance(10_001)
    rig.write("t", 5)

    def reason(from_seq: int) -> Reason | None:
        tombstone = rig.page("t", from_seq).tombstone
        return None if tombstone is None else tombstone.reason

    assert [reason(cursor) for cursor in range(5)] == [Reason.MIXED, Reason.TTL, Reason.TTL, Reason.TTL, None]
    rig.crash()
    assert [reason(cursor) for cursor in range(5)] == [Reason.MIXED, Reason.TTL, Reason.TTL, Reason.TTL, None]


def test_a_full_rejecting_topic_refuses_and_takes_the_write_once_there_is_room(rig: EngineRig) -> None:
    """inv: 17"""
    rig.put("t", cap_records=2, discard=Discard.REJECT)
    rig.write("t", 1, 2)
    with pytest.raises(TopicFullError) as refused:
        rig.write("t", 3)
    assert refused.value.detail == {
        "topic": "t",
        "cap_records": 2,
        "cap_bytes": 0,
        "head_seq": 2,
        "earliest_seq": 1,
    }
    assert rig.topic("t").head == 2
    rig.delete("t", before_seq=2)
    assert rig.write("t", 3).first_seq == 3


def test_a_write_larger_than_a_rejecting_topic_is_too_large_and_never_full(rig: EngineRig) -> None:
    """inv: 18"""
    rig.put("t", cap_records=2, cap_bytes=10, discard=Discard.REJECT)
    with pytest.raises(RecordTooLargeError):
        rig.write("t", 1, 2, 3)
    with pytest.raises(RecordTooLargeError):
        rig.write("t", b'"ten bytes and more"')
    assert rig.topic("t").head == 0


def test_racing_writes_cannot_overrun_a_rejecting_cap(rig: EngineRig) -> None:
    rig.put("t", cap_records=3, discard=Discard.REJECT)
    rig.hold_wal()
    under_way = [rig.write_nowait("t", value) for value in range(3)]
    with pytest.raises(TopicFullError):
        rig.write_nowait("t", 4)
    rig.release_wal()
    assert [pending.result().first_seq for pending in under_way] == [1, 2, 3]
    assert rig.topic("t").count == 3


def test_who_writes_again_when_answered_does_not_find_the_others_counted_twice(rig: EngineRig) -> None:
    rig.put("t", cap_records=3, discard=Discard.REJECT)
    again: list[Pending[AppendResult]] = []
    first, second = rig.write_nowait("t", 1), rig.write_nowait("t", 2)
    first.then(lambda _: again.append(rig.write_nowait("t", 3)))
    rig.run(second)
    assert [rig.run(done).first_seq for done in (first, second, *again)] == [1, 2, 3]


def test_what_has_expired_makes_room_in_a_rejecting_topic(rig: EngineRig) -> None:
    rig.put("t", cap_records=1, ttl_ms=100, discard=Discard.REJECT)
    rig.write("t", 1)
    rig.clock.advance(101)
    assert rig.write("t", 2).first_seq == 2


def test_tightening_takes_effect_at_once_and_relaxing_brings_nothing_back(rig: EngineRig) -> None:
    rig.put("t")
    rig.write("t", *range(10))
    rig.put("t", cap_records=2)
    assert rig.seqs("t") == [9, 10]
    rig.put("t")
    assert rig.seqs("t") == [9, 10]
    rig.put("t", ttl_ms=1)
    rig.clock.advance(2)
    rig.put("t")
    assert rig.seqs("t") == []
    rig.crash()
    assert (rig.seqs("t"), rig.topic("t").evict_floor) == ([], 11)


def test_stamps_never_decrease_when_the_clock_is_set_back(rig: EngineRig) -> None:
    """inv: 7"""
    rig.put("t")
    rig.write("t", 1)
    rig.clock.set_wall(rig.clock.wall_ms() - 60_000)
    rig.write("t", 2)
    rig.crash()
    rig.write("t", 3)
    stamps = [record["$ts"] for record in rig.walk("t")[0]]
    assert stamps == sorted(stamps)


def test_what_a_reader_saw_expire_stays_so_when_the_clock_is_set_back(rig: EngineRig) -> None:
    rig.put("t", ttl_ms=1000)
    rig.write("t", 1)
    rig.runtime.advance(1500)
    assert rig.seqs("t") == []
    rig.runtime.advance(1020)
    rig.clock.set_wall(rig.clock.wall_ms() - 60_000)
    assert rig.seqs("t") == []
    rig.crash()
    assert (rig.seqs("t"), rig.topic("t").evict_floor) == ([], 2)


def test_a_hole_is_forgotten_when_retention_passes_it(rig: EngineRig) -> None:
    rig.put("t", Durability.DISK)
    rig.write("t", 1)
    rig.runtime.advance(20)
    rig.crash()
    assert [hole.reason for hole in rig.topic("t").holes.all] == [Reason.CRASH]
    rig.write("t", 2)
    assert rig.topic("t").holes.all
    rig.put("t", cap_records=1)
    assert (rig.topic("t").evict_floor, len(rig.topic("t").holes.all)) == (2, 1)
    rig.write("t", 3)
    assert rig.topic("t").holes.all == []
    tombstone = rig.page("t").tombstone
    assert tombstone is not None
    assert tombstone.reason is Reason.CAP
    rig.crash()
    assert rig.topic("t").holes.all == []


def test_the_server_counts_live_records_and_bytes_of_all_topics(rig: EngineRig) -> None:
    rig.write("t", 1, 22)
    rig.write("u", 333)
    usage = rig.engine.blocks.usage
    assert (usage.records, usage.payload) == (3, 6)
    rig.delete("t", before_seq=2)
    assert (usage.records, usage.payload) == (2, 5)
    rig.run(rig.engine.delete_topic("u"))
    assert (usage.records, usage.payload) == (1, 2)
    rig.restart()
    usage = rig.engine.blocks.usage
    assert (usage.records, usage.payload) == (1, 2)
