"""One page of a topic after a cursor: window, byte budget, node filter, tombstones, holes, blocks to be fetched."""

from typing import Any

import pytest

from driftq.engine.block_fetch import Fetch
from driftq.engine.read.topic_page import Page, PageQuery
from driftq.model.tombstone import Reason
from driftq.model.topic_config import Durability
from driftq.testing import EngineRig, decoded


@pytest.fixture
def rig() -> EngineRig:
    return EngineRig()


def seqs(page: Page) -> list[int]:
    return [record["$seq"] for record in decoded(page)]


def test_a_page_is_the_next_live_records_and_its_cursor_the_last_of_them(rig: EngineRig) -> None:
    """inv: 6, 8"""
    rig.write("t", *range(10))
    page = rig.page("t", 0, 4)
    assert (seqs(page), page.next_from_seq, page.caught_up, page.lag) == ([1, 2, 3, 4], 4, False, 6)
    page = rig.page("t", 4, 6)
    assert (seqs(page), page.next_from_seq, page.caught_up, page.lag) == ([5, 6, 7, 8, 9, 10], 10, True, 0)
    page = rig.page("t", 10)
    assert (seqs(page), page.next_from_seq, page.caught_up) == ([], 10, True)


def test_deleted_slots_cost_nothing_and_are_passed_in_silence(rig: EngineRig) -> None:
    rig.write("t", *range(10), tags=["a" if value % 2 else "b" for value in range(10)])
    rig.delete("t", match="b")
    page = rig.page("t", 0, 3)
    assert (seqs(page), page.next_from_seq, page.tombstone) == ([2, 4, 6], 6, None)
    page = rig.page("t", 6, 3)
    assert (seqs(page), page.next_from_seq, page.caught_up) == ([8, 10], 10, True)


def test_a_window_that_is_not_filled_ends_at_the_head_though_the_last_records_are_deleted(rig: EngineRig) -> None:
    rig.write("t", 1, 2, 3, tags=[None, None, "x"])
    rig.delete("t", match="x")
    page = rig.page("t")
    assert (seqs(page), page.next_from_seq, page.head_seq) == ([1, 2], 3, 3)


def test_limit_is_clamped_and_zero_is_the_default(rig: EngineRig) -> None:
    """inv: 35"""
    rig.write("t", *range(1500))
    assert rig.page("t", 0, 5000).size == 1000
    assert rig.page("t", 0, 0).size == 256


def test_the_filter_acts_inside_the_window_so_records_may_be_empty_while_the_cursor_moves(rig: EngineRig) -> None:
    rig.write("t", 1, 2, 3, batch_node="a")
    rig.write("t", 4, 5)
    page = rig.page("t", 0, 3, nodes=frozenset([b"a"]))
    assert (seqs(page), page.next_from_seq, page.caught_up) == ([], 3, False)
    page = rig.page("t", 3, 3, nodes=frozenset([b"a"]))
    assert (seqs(page), page.caught_up) == ([4, 5], True)


@pytest.mark.parametrize("many", [1, 100])
def test_a_reader_never_gets_its_own_records_and_still_catches_up(rig: EngineRig, many: int) -> None:
    """inv: 27, 28"""
    for _ in range(many):
        rig.write("t", 1, 2, 3, 4, nodes=["a", "b", None, "ab"])
    walked = [record.get("$node") for record in rig.walk("t", nodes=frozenset([b"a"]))[0]]
    assert walked == ["b", None, "ab"] * many
    both = [record.get("$node") for record in rig.walk("t", nodes=frozenset([b"a", b"b"]))[0]]
    assert both == [None, "ab"] * many


def test_a_topic_can_switch_the_node_filter_off(rig: EngineRig) -> None:
    """inv: 27"""
    rig.put("t", dedupe_node=False)
    rig.write("t", 1, batch_node="a")
    assert rig.seqs("t") == [1]
    assert len(rig.walk("t", nodes=frozenset([b"a"]))[0]) == 1


def test_the_byte_budget_stops_before_a_record_and_the_next_page_begins_with_it(rig: EngineRig) -> None:
    rig.write("t", b'"1234"', b'"1234"', b'"1234"')
    page = rig.page("t", max_batch_bytes=13)
    assert (seqs(page), page.next_from_seq) == ([1, 2], 2)
    page = rig.page("t", 2, max_batch_bytes=13)
    assert (seqs(page), page.next_from_seq) == ([3], 3)


def test_a_record_over_the_budget_is_delivered_alone(rig: EngineRig) -> None:
    """inv: 36"""
    rig.write("t", b'"far over the budget"', 1)
    page = rig.page("t", max_batch_bytes=5)
    assert (seqs(page), page.next_from_seq) == ([1], 1)
    page = rig.page("t", 1, max_batch_bytes=5)
    assert (seqs(page), page.next_from_seq) == ([2], 2)


def test_a_record_over_the_budget_ends_the_page_over_block_boundaries_too(rig: EngineRig) -> None:
    """The record fills more than the budget, and the next one stands in another block."""
    rig.put("t")
    rig.write("t", *range(15), b'"far over the budget"')
    rig.write("t", 1, 2)
    assert len(rig.topic("t").segments) == 2
    page = rig.page("t", 15, max_batch_bytes=5)
    assert (seqs(page), page.next_from_seq) == ([16], 16)


def test_the_budget_counts_meta_and_skips_what_is_filtered(rig: EngineRig) -> None:
    meta = b'{"k":"v"}'
    rig.write("t", 1, 2, 3, metas=[meta, None, meta], nodes=[None, "own", None])
    page = rig.page("t", max_batch_bytes=2 * (1 + len(meta)), nodes=frozenset([b"own"]))
    assert (seqs(page), page.next_from_seq) == ([1, 3], 3)
    page = rig.page("t", max_batch_bytes=2 * (1 + len(meta)))
    assert (seqs(page), page.next_from_seq) == ([1, 2], 2)


def test_every_walk_visits_each_live_record_once(rig: EngineRig) -> None:
    """inv: 9"""
    for size in (1, 3, 300, 20, 1, 260):
        rig.write("t", *range(size))
    rig.delete("t", before_seq=7)
    for limit in (1, 7, 100, 1000):
        records, tombstones = rig.walk("t", limit=limit)
        assert [record["$seq"] for record in records] == list(range(7, 586))
        assert tombstones == []


def test_a_cursor_above_the_head_is_told_that_the_topic_was_recreated(rig: EngineRig) -> None:
    """inv: 43"""
    rig.write("t", *range(5))
    rig.run(rig.engine.delete_topic("t"))
    rig.write("t", "new")
    page = rig.page("t", 5)
    assert page.tombstone is not None
    assert (page.tombstone.reason, page.tombstone.gap_from, page.tombstone.gap_to) == (Reason.RECREATED, 1, 1)
    assert decoded(page)[0]["data"] == "new"
    assert rig.page("t", 1).tombstone is None


def test_a_recreated_topic_without_records_has_an_empty_gap(rig: EngineRig) -> None:
    rig.put("t")
    tombstone = rig.page("t", 7).tombstone
    assert tombstone is not None
    assert (tombstone.gap_from, tombstone.gap_to, tombstone.missed_estimate, tombstone.seq) == (1, 0, 0, 1)


@pytest.fixture
def holed(rig: EngineRig) -> EngineRig:
    """A topic with records 1..3 and 257..258, a crash hole between, and one behind them."""
    rig.put("t", Durability.DISK)
    rig.write("t", 1, 2, 3)
    rig.runtime.advance(20)
    rig.crash()
    rig.write("t", 4, 5)
    rig.runtime.advance(20)
    rig.crash()
    return rig


def test_a_page_never_runs_across_an_unread_hole(holed: EngineRig) -> None:
    """inv: 10"""
    page = holed.page("t")
    assert (seqs(page), page.next_from_seq, page.tombstone) == ([1, 2, 3], 3, None)
    page = holed.page("t", 3)
    assert page.tombstone is not None
    assert (page.tombstone.reason, page.tombstone.gap_from, page.tombstone.gap_to) == (Reason.CRASH, 4, 259)
    assert (page.tombstone.seq, page.tombstone.missed_estimate) == (260, 256)
    assert (seqs(page), page.next_from_seq) == ([260, 261], 261)


def test_a_cursor_inside_a_hole_hears_of_the_unread_rest(holed: EngineRig) -> None:
    tombstone = holed.page("t", 100).tombstone
    assert tombstone is not None
    assert (tombstone.gap_from, tombstone.gap_to) == (101, 259)
    assert holed.page("t", 259).tombstone is None


def test_a_hole_at_the_end_is_told_before_the_reader_has_caught_up(holed: EngineRig) -> None:
    head = holed.topic("t").head
    page = holed.page("t", 261)
    assert page.tombstone is not None
    assert (page.tombstone.gap_to, page.next_from_seq, page.caught_up) == (head, head, True)


def test_a_hole_behind_deleted_records_is_reached_at_once(holed: EngineRig) -> None:
    holed.delete("t", before_seq=4)
    tombstone = holed.page("t", 1).tombstone
    assert tombstone is not None
    assert (tombstone.gap_from, tombstone.gap_to) == (4, 259)


def test_holes_survive_a_restart_and_a_checkpoint(holed: EngineRig) -> None:
    walked = holed.walk("t")
    holed.restart()
    assert holed.walk("t") == walked


def cold_reads(**settings: Any) -> EngineRig:
    """An engine whose segments are on disk, with a page cache that has nothing, and room for one block in its own."""
    rig = EngineRig(cache_bytes=1, segment_max_events=4, **settings)
    rig.put("t")
    for value in range(10):
        rig.write("t", *[value] * 4)
    rig.disk.cached = False
    return rig


def test_a_page_larger_than_the_cache_is_there_after_one_fetch_per_block() -> None:
    rig = cold_reads()
    fetches = 0
    found = rig.engine.diff("t", _all())
    while isinstance(found, Fetch):
        fetches += 1
        rig.run(found)
        found = rig.engine.diff("t", _all())
    assert seqs(found) == list(range(1, 41))
    assert fetches <= 10


def _all() -> PageQuery:
    return PageQuery(0, 1000)


def test_a_block_that_moved_while_it_was_read_is_read_again_where_it_is_now() -> None:
    """What the thread brings belongs to an index that is no more: it must neither be served nor be called damaged."""
    rig = cold_reads(cold_dir="/cold", hot_retain_segments=0)
    rig.checkpoint()
    rig.runtime.hold("driftq-reads")
    found = rig.engine.diff("t", _all())
    assert isinstance(found, Fetch)
    rig.runtime.advance(6000)
    assert rig.engine.relocation is not None
    assert rig.engine.relocation.moved >= 9
    rig.runtime.release("driftq-reads")
    rig.run(found)
    assert rig.seqs("t") == list(range(1, 41))
    assert rig.topic("t").holes.all == []


def test_a_block_that_was_dropped_while_it_was_read_is_no_damage() -> None:
    rig = cold_reads()
    rig.runtime.hold("driftq-reads")
    found = rig.engine.diff("t", _all())
    assert isinstance(found, Fetch)
    rig.delete("t", before_seq=30)
    rig.runtime.run_until_idle()
    rig.runtime.release("driftq-reads")
    rig.run(found)
    assert (rig.seqs("t"), rig.topic("t").holes.all) == (list(range(30, 41)), [])


def damage(rig: EngineRig, first_seq: int) -> None:
    """Flip a byte in the only block of a segment."""
    path = f"/data/topics/{rig.topic('t').id:08X}/seg-{first_seq:016}.data"
    file = rig.disk.open(path)
    file.pwritev([bytes([file.pread(1, 100)[0] ^ 1])], 100)
    file.close()


@pytest.mark.parametrize("cached", [True, False])
def test_a_damaged_block_is_a_hole_that_is_logged_before_anybody_is_told(cached: bool) -> None:
    rig = cold_reads()
    rig.disk.cached = cached
    damage(rig, 9)
    records, tombstones = rig.walk("t")
    assert [record["$seq"] for record in records] == [*range(1, 9), *range(13, 41)]
    assert [(gap["gap_from"], gap["gap_to"], gap["reason"]) for gap in tombstones] == [(9, 12, "corruption")]
    rig.crash()
    assert [(hole.first, hole.last) for hole in rig.topic("t").holes.all] == [(9, 12)]
    assert rig.walk("t") == (records, tombstones)


def test_nobody_is_told_of_damage_while_it_cannot_be_logged() -> None:
    rig = cold_reads()
    damage(rig, 9)
    rig.hold_wal()
    found = rig.engine.diff("t", _all())
    for _ in range(5):
        assert isinstance(found, Fetch)
        rig.runtime.run_until_idle()
        if not found.settled:
            break
        found = rig.engine.diff("t", _all())
    assert isinstance(found, Fetch)
    assert not found.settled
    rig.release_wal()
    assert len(rig.seqs("t")) == 36


# As if the log ended earlier


def test_up_to_ends_a_page_where_it_says() -> None:
    rig = EngineRig()
    rig.write("t", *range(10))
    page = rig.page("t", 2, up_to=6)
    assert (seqs(page), page.next_from_seq, page.head_seq) == ([3, 4, 5, 6], 6, 10)
    assert rig.page("t", 2, limit=3, up_to=6).next_from_seq == 5
    assert seqs(rig.page("t", 8, up_to=99)) == [9, 10]


def test_a_cursor_behind_up_to_stays_where_it_is() -> None:
    rig = EngineRig()
    rig.write("t", *range(10))
    page = rig.page("t", 8, up_to=6)
    assert (seqs(page), page.next_from_seq, page.tombstone) == ([], 8, None)


def test_a_hole_behind_up_to_is_not_told_yet() -> None:
    rig = EngineRig()
    rig.write("t", 1, 2)
    rig.topic("t").skip_to(5, Reason.CRASH)
    rig.write("t", 6)
    page = rig.page("t", 2, up_to=2)
    assert (page.next_from_seq, page.tombstone) == (2, None)
    page = rig.page("t", 2, up_to=3)
    assert page.tombstone is not None
    assert (page.tombstone.gap_to, page.next_from_seq, seqs(page)) == (5, 5, [])
    assert seqs(rig.page("t", 5)) == [6]


def test_what_retention_took_up_to_there_moves_the_cursor_past_it() -> None:
    rig = EngineRig()
    rig.put("t", cap_records=2)
    rig.write("t", *range(10))
    page = rig.page("t", 0, up_to=4)
    assert page.tombstone is not None
    assert (page.tombstone.gap_to, page.next_from_seq, seqs(page)) == (8, 8, [])
