"""The write path: one turn, one frame; the commit point of each class; `disk` seqs reserved ahead (http-v0 §19.4)."""

import errno

import pytest
from msgspec.structs import replace

from driftq.engine.write.appender import AppendResult
from driftq.errors import InternalError, ShuttingDownError, ThrottledError, TopicNotFoundError
from driftq.model.limits import RESERVE_MAX, RESERVE_MIN, WAL_QUEUE_MAX, Limits
from driftq.model.tombstone import Hole, Reason
from driftq.model.topic_config import Durability, TopicConfig
from driftq.storage.wal.group_commit import Submission
from driftq.system.disk import Site
from driftq.system.runtime import Pending
from driftq.testing import SMALL, EngineRig, FaultyDisk


@pytest.fixture
def rig() -> EngineRig:
    return EngineRig()


def frames_of(rig: EngineRig) -> int:
    return rig.engine.shards.all[0].counters.frames


def test_small_writes_of_one_turn_share_a_frame_and_each_has_its_own_range(rig: EngineRig) -> None:
    rig.put("t")
    before = frames_of(rig)
    under_way = [rig.write_nowait("t", *range(size)) for size in (1, 3, 2)]
    rig.runtime.run_until_idle()
    assert [(p.result().first_seq, p.result().last_seq) for p in under_way] == [(1, 1), (2, 4), (5, 6)]
    assert frames_of(rig) == before + 1
    assert len({record["$ts"] for record in rig.walk("t")[0]}) == 1


def test_a_key_a_batch_node_and_many_records_keep_their_own_frame(rig: EngineRig) -> None:
    rig.put("t")
    before = frames_of(rig)
    under_way = [
        rig.write_nowait("t", 1),
        rig.write_nowait("t", 2, key="k"),
        rig.write_nowait("t", 3, batch_node="n"),
        rig.write_nowait("t", *range(256)),
        rig.write_nowait("t", 5),
        rig.write_nowait("t", 6),
    ]
    rig.runtime.run_until_idle()
    assert [pending.result().first_seq for pending in under_way] == [1, 2, 3, 4, 260, 261]
    assert frames_of(rig) == before + 5


def test_concurrent_writers_get_seqs_without_gap_and_without_repeat(rig: EngineRig) -> None:
    """inv: 26"""
    under_way: list[Pending[AppendResult]] = []
    for turn in range(20):
        under_way += [rig.write_nowait("t", *range(size)) for size in (1, 2, 7)]
        if turn % 3 == 0:
            rig.runtime.turn()
    rig.runtime.run_until_idle()
    answers = [pending.result() for pending in under_way]
    assert [answer.last_seq - answer.first_seq + 1 for answer in answers] == [1, 2, 7] * 20
    given = [seq for answer in answers for seq in range(answer.first_seq, answer.last_seq + 1)]
    assert sorted(given) == list(range(1, 201))
    assert rig.seqs("t") == list(range(1, 201))


@pytest.mark.parametrize("durability", [Durability.EPHEMERAL, Durability.MEMORY, Durability.DISK])
def test_a_class_without_sync_acks_when_queued(rig: EngineRig, durability: Durability) -> None:
    rig.put("t", durability)
    rig.write("t", 0)
    rig.hold_wal()
    answer = rig.write("t", 1)
    assert (answer.first_seq, answer.sync_ns) == (2, 0)
    assert rig.seqs("t") == [1, 2]


def test_an_fsync_write_is_neither_acked_nor_shown_before_its_sync(rig: EngineRig) -> None:
    rig.put("t")
    rig.hold_wal()
    pending = rig.write_nowait("t", 1)
    rig.runtime.run_until_idle()
    assert not pending.settled
    assert (rig.topic("t").head, rig.seqs("t")) == (0, [])
    rig.release_wal()
    assert pending.result().first_seq == 1
    assert rig.seqs("t") == [1]


def test_a_write_behind_a_waiting_one_waits_its_turn(rig: EngineRig) -> None:
    """A disk write beyond its reservation waits for a sync; one behind it that would not have to may not overtake."""
    rig.put("t", Durability.DISK)
    rig.hold_wal()
    waiting = rig.write_nowait("t", *range(RESERVE_MIN + 1))
    rig.runtime.run_until_idle()
    behind = rig.write_nowait("t", 1)
    rig.runtime.run_until_idle()
    assert [waiting.settled, behind.settled] == [False, False]
    assert rig.topic("t").head == 0
    rig.release_wal()
    assert (waiting.result().last_seq, behind.result().first_seq) == (RESERVE_MIN + 1, RESERVE_MIN + 2)


def test_an_ephemeral_write_leaves_nothing_on_disk(rig: EngineRig) -> None:
    rig.put("t", Durability.EPHEMERAL)
    before = frames_of(rig)
    for _ in range(30):
        rig.write("t", *range(10))
    rig.checkpoint()
    assert frames_of(rig) == before + 1
    assert rig.disk.names("/data/topics") == []


def test_a_disk_write_is_synced_within_ten_milliseconds_without_further_traffic(rig: EngineRig) -> None:
    rig.put("t", Durability.DISK)
    rig.write("t", 1)
    rig.write("t", 2)
    assert rig.engine.synced_seq(rig.topic("t")) == 1
    rig.runtime.advance(10)
    assert rig.engine.synced_seq(rig.topic("t")) == 2
    assert rig.disk.synced[Site.WAL_TIMER] == 1
    rig.runtime.advance(9)
    assert rig.disk.synced[Site.WAL_TIMER] == 1


def test_synced_seq_follows_an_fsync_ack_at_once(rig: EngineRig) -> None:
    rig.put("t")
    rig.write("t", 1, 2, 3)
    assert rig.engine.synced_seq(rig.topic("t")) == 3


# Reservations


def reserved(rig: EngineRig) -> int:
    return rig.topic("t").reserved


def test_a_topic_that_was_never_written_has_no_hole_after_a_power_loss(rig: EngineRig) -> None:
    """proves: G-TOMB-9"""
    rig.put("t", Durability.DISK)
    rig.crash()
    assert (rig.topic("t").head, rig.topic("t").holes.all) == (0, [])
    assert rig.write("t", 1).first_seq == 1


def test_a_power_loss_leaves_a_hole_that_says_it_is_at_most_so_large(rig: EngineRig) -> None:
    """proves: G-TOMB-9"""
    rig.put("t", Durability.DISK)
    rig.write("t", 1)
    last = reserved(rig)
    rig.crash()
    assert rig.topic("t").holes.all == [Hole(2, last, Reason.CRASH, at_most=True)]
    tombstone = rig.page("t", 1).tombstone
    assert tombstone is not None
    assert tombstone.text() == f"up to {last - 1} records may be gone: seq 2 to {last}, crash"
    assert rig.write("t", 2).first_seq == last + 1
    rig.crash()
    assert [hole.at_most for hole in rig.topic("t").holes.all] == [True, True]


def test_a_write_that_creates_its_topic_waits_for_no_second_sync(rig: EngineRig) -> None:
    rig.write("t", 0, config=TopicConfig(durability=Durability.DISK))
    assert reserved(rig) == RESERVE_MIN
    assert rig.disk.synced[Site.WAL_COMMIT] == 1


def test_the_next_reservation_is_asked_for_when_a_quarter_is_used(rig: EngineRig) -> None:
    rig.write("t", config=TopicConfig(durability=Durability.DISK))
    before = frames_of(rig)
    rig.write("t", *range(64))
    assert (frames_of(rig) - before, reserved(rig)) == (1, 256)
    rig.write("t", 65)
    assert (frames_of(rig) - before, reserved(rig)) == (3, 65 + 256)


def test_no_write_waits_for_a_reservation_in_steady_state(rig: EngineRig) -> None:
    rig.put("t", Durability.DISK)
    rig.write("t", *range(1000))
    syncs = rig.disk.synced[Site.WAL_COMMIT]
    for _ in range(50):
        rig.hold_wal()
        assert rig.write_nowait("t", *range(100)).settled is False
        pending = rig.write_nowait("t", *range(100))
        rig.runtime.run_until_idle()
        assert pending.settled, "a write waited for its reservation"
        rig.release_wal()
    assert rig.disk.synced[Site.WAL_COMMIT] - syncs < 30


def test_large_writes_of_one_turn_do_not_wait_for_a_sync_in_every_turn(rig: EngineRig) -> None:
    """A turn fills more than one frame; the second one must not find the reservation of the first on its way."""
    rig.put("t", Durability.DISK)
    waited: list[int] = []
    for turn in range(20):
        rig.hold_wal()
        writes = [rig.write_nowait("t", *range(count)) for count in (1000, 600)]
        rig.runtime.run_until_idle()
        if not all(write.settled for write in writes):
            waited.append(turn)
        rig.release_wal()
    assert waited == [0], waited


def test_a_write_that_had_to_wait_doubles_the_window(rig: EngineRig) -> None:
    rig.put("t", Durability.DISK)
    rig.write("t", *range(300))
    assert reserved(rig) == 300 + 300
    rig.write("t", *range(700))
    assert reserved(rig) == 1000 + 1400


def test_a_window_is_twice_what_was_acked_since_the_last_one(rig: EngineRig) -> None:
    rig.write("t", config=TopicConfig(durability=Durability.DISK))
    rig.hold_wal()
    for _ in range(7):
        rig.write("t", *range(30))
    assert rig.topic("t").in_flight.reserve_window == 2 * 6 * 30


def test_no_window_is_wider_than_the_most(rig: EngineRig) -> None:
    rig = EngineRig(wal_file_bytes=4 << 20)
    rig.put("t", Durability.DISK)
    for _ in range(12):
        rig.write("t", *range(10_000))
        assert reserved(rig) <= rig.topic("t").head + RESERVE_MAX
    acked = rig.topic("t").head
    rig.crash()
    assert acked <= rig.topic("t").head <= acked + RESERVE_MAX


def test_a_topic_without_writes_for_a_minute_gives_its_seqs_back_and_a_power_loss_leaves_no_hole(
    rig: EngineRig,
) -> None:
    """proves: G-TOMB-10"""
    rig.put("t", Durability.DISK)
    rig.write("t", *range(1000))
    rig.runtime.advance(50_000)
    rig.write("t", 1)
    rig.runtime.advance(50_000)
    assert reserved(rig) > 1001
    rig.runtime.advance(12_000)
    assert reserved(rig) == 1001
    rig.crash()
    assert (rig.topic("t").head, rig.topic("t").holes.all) == (1001, [])
    assert rig.write("t", 1).first_seq == 1002


def test_only_the_first_disk_write_after_an_idle_minute_waits_for_a_sync(rig: EngineRig) -> None:
    """proves: G-TOMB-10"""
    rig.put("t", Durability.DISK)
    waited: list[int] = []
    for number in range(300):
        if number in (100, 200):
            rig.runtime.advance(62_000)
        rig.hold_wal()
        pending = rig.write_nowait("t", number)
        rig.runtime.run_until_idle()
        if not pending.settled:
            waited.append(number)
        rig.release_wal()
        assert pending.result().first_seq == number + 1
    assert waited == [0, 100, 200]


def test_topics_that_gave_their_seqs_back_cost_nothing_per_second(rig: EngineRig) -> None:
    """proves: G-TOMB-10"""
    names = [f"t{number}" for number in range(50)]
    for name in names:
        rig.write(name, 1, config=TopicConfig(durability=Durability.DISK))
    idle = rig.engine._commit_point.reservations.idle
    assert len(idle) == 50
    rig.runtime.advance(62_000)
    assert len(idle) == 0
    before = frames_of(rig)
    rig.runtime.advance(55_000)
    assert frames_of(rig) == before


def test_a_topic_with_a_record_that_is_not_synced_keeps_its_reservation() -> None:
    rig = EngineRig(writer_hang_limit_ms=600_000)
    rig.put("t", Durability.DISK)
    rig.write("t", 1)
    rig.hold_wal()
    rig.write("t", 2)
    rig.runtime.advance(70_000)
    assert reserved(rig) > 2
    rig.release_wal()
    rig.runtime.advance(3000)
    assert reserved(rig) == 2


def test_no_acked_disk_seq_is_ever_given_again_whatever_was_lost(rig: EngineRig) -> None:
    """inv: 79"""
    rig.put("t", Durability.DISK)
    highest = 0
    for life in range(6):
        rig.hold_wal()
        pending = rig.write_nowait("t", *range(50 + life))
        rig.runtime.run_until_idle()
        if pending.settled:
            assert pending.result().first_seq > highest
            highest = pending.result().last_seq
        rig.crash()
        assert rig.topic("t").head >= highest
    answer = rig.write("t", 1)
    assert answer.first_seq > highest
    holes = rig.topic("t").holes.all
    assert [hole.reason for hole in holes] == [Reason.CRASH] * len(holes)


def test_a_graceful_stop_leaves_the_exact_head_and_no_hole(rig: EngineRig) -> None:
    rig.put("t", Durability.DISK)
    rig.write("t", *range(300))
    rig.restart()
    assert (rig.topic("t").head, rig.topic("t").holes.all) == (300, [])
    assert rig.write("t", 1).first_seq == 301


def test_a_graceful_stop_during_a_checkpoint_leaves_no_hole_either(rig: EngineRig) -> None:
    rig.put("t", Durability.DISK)
    rig.write("t", 1)
    rig.runtime.hold("driftq-files")
    rig.engine.checkpointer.run()
    rig.runtime.run_until_idle()
    rig.write("t", 2)
    closing = rig.engine.close()
    rig.runtime.run_until_idle()
    assert not closing.settled
    rig.runtime.release("driftq-files")
    rig.runtime.advance(10)
    assert closing.result()
    rig.start()
    assert (rig.seqs("t"), rig.topic("t").head, rig.topic("t").holes.all) == ([1, 2], 2, [])


# Refusals


def test_a_full_queue_refuses_the_whole_write_and_takes_it_later(rig: EngineRig) -> None:
    rig.put("t", Durability.MEMORY)
    rig.hold_wal()
    for number in range(WAL_QUEUE_MAX):
        rig.write("t", number)
    head = rig.topic("t").head
    with pytest.raises(ThrottledError) as refused:
        rig.write("t", *range(10))
    assert refused.value.retry_after_ms is not None
    assert rig.topic("t").head == head
    assert rig.engine.shards.all[0].submit_full == 1
    rig.release_wal()
    assert rig.write("t", 1).first_seq == head + 1


def test_a_write_that_creates_leaves_no_topic_behind_when_the_queue_is_full(rig: EngineRig) -> None:
    rig.put("t", Durability.MEMORY)
    rig.hold_wal()
    for number in range(WAL_QUEUE_MAX - 1):
        rig.write("t", number)
    last = rig.write_nowait("last", 1)
    with pytest.raises(ThrottledError):
        rig.write_nowait("more", 1)
    rig.release_wal()
    assert last.result().created
    assert sorted(topic.name for topic in rig.engine.catalog.visible()) == ["last", "t"]


def test_live_bytes_of_all_topics_have_a_cap_that_counts_what_is_under_way() -> None:
    rig = EngineRig(replace(SMALL, limits=Limits(total_bytes_max=10)))
    rig.write("t", 12345, 123)
    pending = rig.write_nowait("u", 12)
    with pytest.raises(ThrottledError) as refused:
        rig.write_nowait("u", 1)
    assert refused.value.detail == {"limit": "max_total_bytes", "max": 10}
    assert rig.run(pending).created
    with pytest.raises(ThrottledError):
        rig.write("new", 1)
    assert "new" not in {topic.name for topic in rig.engine.catalog.visible()}
    rig.delete("t", before_seq=2)
    rig.write("u", 12345)


def test_create_false_and_auto_create_false_do_not_create(rig: EngineRig) -> None:
    """inv: 20"""
    with pytest.raises(TopicNotFoundError):
        rig.write("t", 1, create=False)
    with pytest.raises(TopicNotFoundError):
        rig.write("t", 1, config=TopicConfig(auto_create=False))
    assert list(rig.engine.catalog.visible()) == []
    answer = rig.write("t", 1, create=True, config=TopicConfig(auto_create=False, cap_records=7))
    assert answer.created
    assert rig.topic("t").config.cap_records == 7
    again = rig.write("t", 1, create=False, config=TopicConfig(cap_records=9))
    assert (again.created, rig.topic("t").config.cap_records) == (False, 7)


def test_a_failed_write_shows_nothing_gives_its_seqs_back_and_the_next_one_works() -> None:
    armed = False

    def full(operation: str, path: str) -> bool:
        return armed and operation == "pwritev" and "/wal-" in path

    rig = EngineRig(wrap=lambda disk: FaultyDisk(disk, error=errno.ENOSPC, when=full))
    rig.put("t")
    rig.write("t", 1)
    armed = True
    pair = [rig.write_nowait("t", 2), rig.write_nowait("t", 3, key="k")]
    rig.runtime.run_until_idle()
    for pending in pair:
        with pytest.raises(InternalError):
            pending.result()
    assert rig.seqs("t") == [1]
    assert rig.topic("t").in_flight.records == 0
    assert rig.write("t", 4).first_seq == 2
    armed = False
    rig.crash()
    assert [record["data"] for record in rig.walk("t")[0]] == [1, 4]


def test_a_closing_engine_takes_nothing_and_finishes_what_is_under_way(rig: EngineRig) -> None:
    rig.put("t")
    rig.hold_wal()
    pending = rig.write_nowait("t", 1)
    rig.runtime.run_until_idle()
    closing = rig.engine.close()
    for call in (
        lambda: rig.write_nowait("t", 2),
        lambda: rig.put_nowait("u"),
        lambda: rig.engine.delete_topic("t"),
        lambda: rig.engine.delete_records("t", before_seq=1),
    ):
        with pytest.raises(ShuttingDownError):
            call()
    rig.runtime.advance(5)
    assert not closing.settled
    rig.release_wal()
    rig.runtime.advance(5)
    assert closing.result()
    assert pending.result().first_seq == 1
    rig.start()
    assert rig.seqs("t") == [1]


def test_a_reservation_for_which_the_queue_has_no_room_stops_nobody() -> None:
    """The writes of one turn were let in one by one; what they reserve comes on top."""
    rig = EngineRig()
    for name in ("a", "b"):
        rig.put(name, Durability.DISK)
    rig.hold_wal()
    shard = rig.engine.shards.all[0]
    while shard.depth < WAL_QUEUE_MAX - 1:
        shard.submit(Submission((), sync=False, done=None))
    answers = [rig.write_nowait(name, *range(250)) for name in ("a", "b")]
    rig.runtime.run_until_idle()
    rig.release_wal()
    assert [answer.result().last_seq for answer in answers] == [250, 250]
    for name in ("a", "b"):
        assert rig.write(name, *range(250)).first_seq == 251
    rig.crash()
    assert [rig.topic(name).count for name in ("a", "b")] == [500, 500]


def test_a_failed_write_of_the_log_says_nothing_about_what_was_written_before_it() -> None:
    """A writer process reports unawaited writes late; a failure in between must not count as their result."""
    strike = [False]
    rig = EngineRig(wrap=lambda disk: FaultyDisk(disk, when=lambda _, path: strike[0] and "/wal/" in path), seed=1)
    rig.put("t", Durability.DISK)
    rig.write("t", 1)
    rig.runtime.advance(100)
    rig.write("t", 2)
    strike[0] = True
    rig.write_nowait("t", 3)
    rig.runtime.run_until_idle()
    assert rig.topic("t").in_flight.lost_from == 3
    strike[0] = False
    rig.runtime.advance(100)
    assert rig.engine.synced_seq(rig.topic("t")) == 2
