"""Reads that fail: none of them means that records are lost, and none changes anything. How much is kept."""

import errno
import os
from collections.abc import Callable

import pytest

from driftq.engine.files import checkpoint
from driftq.errors import ColdUnavailableError, SegmentUnavailableError, StartError, ThrottledError
from driftq.model.limits import OWN_BLOCK_RECORDS, Limits
from driftq.model.topic_config import Durability
from driftq.storage.blocks.block import Block
from driftq.storage.layout import Layout
from driftq.storage.snapshot_file import install_snapshot
from driftq.system.runtime import run
from driftq.testing import EngineRig
from tests.unit.engine.unreadable import Fault, filled

ERRORS = [errno.ENOENT, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENOMEM, errno.EACCES]


@pytest.mark.parametrize("cached", [True, False], ids=["nowait", "thread"])
@pytest.mark.parametrize("error", ERRORS)
def test_a_reader_who_cannot_be_served_now_gets_an_error_and_nothing_has_changed(error: int, *, cached: bool) -> None:
    """proves: G-IO-8"""
    fault = Fault(error)
    rig = filled(fault)
    rig.disk.cached = cached
    frames = rig.engine.shards.all[0].counters.frames
    fault.on = True
    with pytest.raises(SegmentUnavailableError, match="cannot be read now") as refused:
        rig.page("t")
    assert (refused.value.code, refused.value.retry_after_ms) == ("segment_unavailable", 1000)
    fault.on = False
    assert rig.seqs("t") == list(range(1, 25))
    assert rig.topic("t").holes.all == []
    assert rig.engine.shards.all[0].counters.frames == frames


@pytest.mark.parametrize("suffix", [".parquet", ".del"])
@pytest.mark.parametrize("error", ERRORS)
def test_the_same_holds_for_the_cold_tier(error: int, suffix: str) -> None:
    """proves: G-IO-8"""
    fault = Fault(error, suffix)
    rig = filled(fault, cold=True)
    rig.restart()
    files = {path: rig.disk.open(path) for path in cold_files(rig)}
    fault.on = True
    if suffix == ".parquet":
        with pytest.raises(ColdUnavailableError, match=os.strerror(error)):
            rig.page("t")
    rig.runtime.stop()
    with pytest.raises(StartError, match=os.strerror(error)):
        EngineRig(rig.settings, disk=rig.disk.fork(), clock=rig.clock, wrap=fault.wrap)
    fault.on = False
    rig.kill()
    assert rig.seqs("t") == list(range(1, 25))
    assert cold_files(rig) == list(files)


def cold_files(rig: EngineRig) -> list[str]:
    """Return every file of the topic's cold directory."""
    directory = "/cold/topics/00000001"
    return [f"{directory}/{name}" for name in rig.disk.names(directory)]


def test_the_thread_that_reads_lives_through_whatever_a_read_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory for a large block, for example: an error for whoever waits for it, and the next one is read.

    proves: G-IO-8
    """

    def read_block(*_: object) -> Block:
        raise MemoryError

    rig = filled(Fault(errno.EIO))
    rig.disk.cached = False
    with monkeypatch.context() as patch:
        patch.setattr(rig.engine.blocks.store, "read_block", read_block)
        with pytest.raises(SegmentUnavailableError, match="cannot be read now \\(MemoryError"):
            rig.page("t")
    assert rig.seqs("t") == list(range(1, 25))
    assert rig.topic("t").holes.all == []


def test_a_time_that_cannot_be_looked_up_now_is_an_error_and_no_hole() -> None:
    """proves: G-IO-8"""
    fault = Fault(errno.EMFILE)
    rig = filled(fault)
    ts = rig.read("t", 4, 1)[0]["$ts"]
    fault.on = True
    rig.engine.blocks.forget(rig.topic("t").id, rig.topic("t").segments[0])
    with pytest.raises(SegmentUnavailableError, match="cannot be read now"):
        rig.run(run(rig.engine.seek("t", ts)))
    fault.on = False
    assert rig.run(run(rig.engine.seek("t", ts))) == 4
    assert rig.topic("t").holes.all == []


@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
@pytest.mark.parametrize("error", ERRORS)
def test_a_ttl_that_needs_an_unavailable_block_waits_for_it_and_writes_go_on(error: int, *, cold: bool) -> None:
    """proves: G-IO-8"""
    fault = Fault(error, ".parquet" if cold else ".data")
    rig = filled(fault, cold=cold, ttl_ms=10_000)
    rig.restart()
    fault.on = True
    topic = rig.topic("t")
    half_expired = topic.segments[0].index.last_ts(0) + 10_000
    rig.clock.advance(half_expired - rig.clock.wall_ms())
    before = (topic.count, topic.earliest, topic.ttl_lost)
    assert rig.write("t", 1).first_seq == 25, "a write needs no block of the front"
    assert rig.page("t", from_seq=24).size == 1
    with pytest.raises(SegmentUnavailableError):
        rig.page("t", from_seq=topic.earliest - 1)
    assert (topic.count - 1, topic.earliest, topic.ttl_lost) == before
    rig.runtime.advance(1500)
    fault.on = False
    rig.runtime.advance(1500)
    assert (topic.count, topic.ttl_lost, topic.holes.all) == (1, 24, [])


@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
@pytest.mark.parametrize("error", ERRORS)
def test_a_cap_that_needs_an_unavailable_block_waits_for_it_and_writes_go_on(error: int, *, cold: bool) -> None:
    """The topic holds at most one block more than its cap, and a restart finds the state that a well disk would have.

    proves: G-IO-8
    """
    fault = Fault(error, ".parquet" if cold else ".data")
    rig = filled(fault, cold=cold, cap_records=24)
    rig.restart()
    fault.on = True
    topic = rig.topic("t")
    rig.write("t", 1, 2, 3)
    assert (topic.count, topic.earliest, topic.cap_lost) == (27, 1, 0)
    rig.write("t", *range(7))
    assert (topic.count, topic.earliest, topic.cap_lost) == (26, 9, 8), "a whole block goes unread"
    fault.on = False
    rig.runtime.advance(1500)
    assert (topic.count, topic.earliest, topic.cap_lost, topic.holes.all) == (24, 11, 10, [])
    state = rig.walk("t")
    rig.kill()
    assert rig.walk("t") == state


DELETES: list[Callable[[EngineRig], object]] = [
    lambda rig: rig.delete("t", before_seq=20),
    lambda rig: rig.delete("t", match="a"),
    lambda rig: rig.run(rig.engine.delete_records("t", seqs=[3, 12])),
]


@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("delete", DELETES, ids=["before_seq", "tag", "seqs"])
def test_a_delete_that_needs_an_unavailable_block_is_refused_before_it_is_logged(
    delete: Callable[[EngineRig], object], error: int, *, cold: bool
) -> None:
    """proves: G-IO-8"""
    fault = Fault(error, ".parquet" if cold else ".data")
    rig = filled(fault, cold=cold)
    rig.restart()
    frames = rig.engine.shards.all[0].counters.frames
    fault.on = True
    with pytest.raises(ColdUnavailableError if cold else SegmentUnavailableError):
        delete(rig)
    assert rig.engine.shards.all[0].counters.frames == frames
    fault.on = False
    delete(rig)
    assert rig.topic("t").holes.all == []


def test_a_delete_that_was_accepted_is_applied_though_its_blocks_become_unavailable() -> None:
    """proves: G-IO-9"""
    fault = Fault(errno.EIO)
    rig = filled(fault)
    rig.hold_wal()
    deleted = rig.engine.delete_records("t", seqs=[3, 12])
    rig.runtime.run_until_idle()
    fault.on = True
    rig.release_wal()
    assert deleted.result().deleted == 2


def test_a_full_server_that_cannot_judge_a_ttl_is_full() -> None:
    """What has expired would make room, and will."""
    fault = Fault(errno.EMFILE)
    rig = filled(fault, ttl_ms=10_000)
    rig.restart(limits=Limits(total_bytes_max=rig.topic("t").payload))
    rig.put("other")
    fault.on = True
    rig.clock.advance(9_905)
    with pytest.raises(ThrottledError, match="storage quota exceeded"):
        rig.write("other", 1)
    fault.on = False
    rig.runtime.advance(2000)
    assert rig.write("other", 1).first_seq == 1


def test_a_start_that_cannot_read_what_it_must_is_refused_and_loses_nothing() -> None:
    """proves: G-IO-7"""
    fault = Fault(errno.EACCES)
    rig = filled(fault)
    rig.delete("t", match="a")
    rig.runtime.stop()
    fault.on = True
    with pytest.raises(StartError, match="Permission denied"):
        EngineRig(rig.settings, disk=rig.disk.fork(), clock=rig.clock, wrap=fault.wrap)
    fault.on = False
    rig.kill()
    assert rig.seqs("t") == list(range(2, 25, 2))


CACHE = 64 << 10
BLOCKS_SHARE = CACHE - CACHE // 8
"""What the tag indexes leave of it."""


def in_memory(rig: EngineRig) -> int:
    """Bytes of blocks that are kept, counted one by one; those of an `ephemeral` topic are not."""
    blocks = list(rig.engine.blocks._cached.values())
    for topic in rig.engine.catalog.visible():
        blocks += [block for segment in topic.segments if not segment.resident for block in segment.pending.values()]
    return sum(len(block.frame) for block in blocks)


def write_block(rig: EngineRig, topic: str = "t") -> None:
    """A block of its own, of about 10 KiB."""
    rig.write(topic, *[b'"%b"' % (b"x" * 30)] * OWN_BLOCK_RECORDS)


def test_blocks_that_are_not_in_their_file_yet_take_their_room_from_the_cache() -> None:
    rig = EngineRig(cache_bytes=CACHE)
    rig.put("t")
    for _ in range(10):
        write_block(rig)
    full = in_memory(rig)
    assert BLOCKS_SHARE // 2 < full == rig.engine.blocks.kept_bytes <= BLOCKS_SHARE
    rig.runtime.hold("driftq-blocks")
    for _ in range(4):
        write_block(rig)
        assert in_memory(rig) == rig.engine.blocks.kept_bytes <= BLOCKS_SHARE
    assert sum(len(segment.pending) for segment in rig.topic("t").segments) == 4
    rig.runtime.release("driftq-blocks")
    rig.runtime.run_until_idle()
    assert in_memory(rig) == rig.engine.blocks.kept_bytes <= BLOCKS_SHARE
    assert rig.seqs("t") == list(range(1, 14 * OWN_BLOCK_RECORDS + 1))


def test_what_goes_before_it_is_written_gives_its_room_back() -> None:
    rig = EngineRig(cache_bytes=CACHE)
    rig.put("t")
    rig.put("other")
    rig.runtime.hold("driftq-blocks")
    write_block(rig)
    write_block(rig, "other")
    both = rig.engine.blocks.kept_bytes
    rig.run(rig.engine.delete_topic("t"))
    assert in_memory(rig) == rig.engine.blocks.kept_bytes == both // 2
    rig.delete("other", before_seq=OWN_BLOCK_RECORDS + 1)
    assert rig.engine.blocks.kept_bytes == in_memory(rig) == 0


def test_records_that_never_have_a_file_take_nothing_from_the_cache() -> None:
    rig = EngineRig(cache_bytes=CACHE)
    rig.put("t", Durability.EPHEMERAL)
    for _ in range(8):
        write_block(rig)
    assert rig.engine.blocks.kept_bytes == 0


def test_what_a_checkpoint_copies_takes_its_room_from_the_cache_until_it_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = EngineRig(cache_bytes=CACHE, segment_max_events=10_000)
    rig.put("t")
    for _ in range(10):
        write_block(rig)
    rig.write("t", *[b"1" * 100] * 80)  # in the open block, so that it has to be copied
    seen = []

    def install(layout: Layout, number: int, *parts: bytes) -> None:
        seen.append((rig.engine.blocks.kept_bytes, in_memory(rig), sum(map(len, parts))))
        install_snapshot(layout, number, *parts)

    monkeypatch.setattr(checkpoint, "install_snapshot", install)
    assert rig.checkpoint()
    ((kept, blocks, content),) = seen
    assert blocks + 2 * content < kept <= BLOCKS_SHARE
    assert rig.engine.blocks.kept_bytes == in_memory(rig)
