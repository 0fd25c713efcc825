"""Reads that fail: which of them mean that records are lost, and that all others change nothing. How much is kept."""

import errno
from collections.abc import Callable

import pytest

from driftq.engine import checkpoint
from driftq.errors import InternalError, StartError, ThrottledError
from driftq.model.limits import OWN_BLOCK_RECORDS, Limits
from driftq.model.tombstone import Hole, Reason
from driftq.model.topic import Durability
from driftq.seam.runtime import run
from driftq.storage.block import Block
from driftq.storage.layout import Layout
from driftq.storage.snapshot import install_snapshot
from driftq.testing import EngineRig
from tests.unit.engine.unreadable import Fault, filled

SAYS_NOTHING = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES]
LOST = [errno.EIO, errno.ENOENT]


@pytest.mark.parametrize("cached", [True, False], ids=["nowait", "thread"])
@pytest.mark.parametrize("error", SAYS_NOTHING)
def test_a_reader_who_cannot_be_served_now_gets_an_error_and_nothing_has_changed(error: int, *, cached: bool) -> None:
    """proves: G-IO-8"""
    fault = Fault(error)
    rig = filled(fault)
    rig.disk.cached = cached
    frames = rig.engine.shards.all[0].counters.frames
    fault.on = True
    with pytest.raises(InternalError, match="cannot be read now"):
        rig.page("t")
    fault.on = False
    assert rig.seqs("t") == list(range(1, 25))
    assert rig.topic("t").holes.all == []
    assert rig.engine.shards.all[0].counters.frames == frames


@pytest.mark.parametrize("cached", [True, False], ids=["nowait", "thread"])
@pytest.mark.parametrize("error", LOST)
def test_what_the_device_cannot_give_back_is_a_hole(error: int, *, cached: bool) -> None:
    """proves: G-SEG-2, G-SEG-6"""
    fault = Fault(error)
    rig = filled(fault)
    rig.disk.cached = cached
    fault.on = True
    rig.page("t", from_seq=8, limit=1)
    assert rig.topic("t").holes.all == [Hole(9, 16, Reason.CORRUPTION)]


@pytest.mark.parametrize("suffix", [".parquet", ".del"])
def test_the_same_holds_for_the_cold_tier(suffix: str) -> None:
    """proves: G-IO-8"""
    fault = Fault(errno.EMFILE, suffix)
    rig = filled(fault, cold=True)
    rig.restart()
    fault.on = True
    if suffix == ".parquet":
        with pytest.raises(InternalError, match="Too many open files"):
            rig.page("t")
    rig.runtime.stop()
    with pytest.raises(StartError, match="Too many open files"):
        EngineRig(rig.settings, disk=rig.disk.fork(), clock=rig.clock, wrap=fault.wrap)
    fault.on = False
    rig.kill()
    assert rig.seqs("t") == list(range(1, 25))


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
        with pytest.raises(InternalError, match="cannot be read now: MemoryError"):
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
    with pytest.raises(InternalError, match="cannot be read now"):
        rig.run(run(rig.engine.seek("t", ts)))
    fault.on = False
    assert rig.run(run(rig.engine.seek("t", ts))) == 4
    assert rig.topic("t").holes.all == []


CALLS: list[Callable[[EngineRig], object]] = [
    lambda rig: rig.topic("t"),
    lambda rig: rig.page("t"),
    lambda rig: rig.write("t", 1),
    lambda rig: rig.delete("t", before_seq=20),
    lambda rig: rig.put("t", ttl_ms=50_000),
    lambda rig: rig.run(rig.engine.delete_topic("t")),
]


@pytest.mark.parametrize("call", CALLS)
def test_a_ttl_that_cannot_be_judged_refuses_the_call_and_the_upkeep_goes_on(
    call: Callable[[EngineRig], object],
) -> None:
    fault = Fault(errno.EMFILE)
    rig = filled(fault, ttl_ms=10_000)
    fault.on = True
    rig.clock.advance(9_955)
    with pytest.raises(InternalError, match="cannot be read now"):
        call(rig)
    rig.runtime.advance(1500)
    fault.on = False
    rig.runtime.advance(1500)
    topic = rig.topic("t")
    assert (topic.count, topic.ttl_lost, topic.holes.all) == (0, 24, [])
    assert rig.write("t", 1).first_seq == 25


def test_a_full_server_that_cannot_judge_a_ttl_is_full() -> None:
    """What has expired would make room, and will."""
    fault = Fault(errno.EMFILE)
    rig = filled(fault, ttl_ms=10_000)
    rig.restart(limits=Limits(total_bytes_max=rig.topic("t").payload))
    rig.put("other")
    fault.on = True
    rig.clock.advance(9_905)
    with pytest.raises(ThrottledError, match="as many bytes"):
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

    def install(layout: Layout, number: int, content: bytes) -> None:
        seen.append((rig.engine.blocks.kept_bytes, in_memory(rig), len(content)))
        install_snapshot(layout, number, content)

    monkeypatch.setattr(checkpoint, "install_snapshot", install)
    assert rig.checkpoint()
    ((kept, blocks, content),) = seen
    assert blocks + 2 * content < kept <= BLOCKS_SHARE
    assert rig.engine.blocks.kept_bytes == in_memory(rig)
