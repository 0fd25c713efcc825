"""Segments that are sealed, and those that must not be."""

from errno import ENOSPC

import pytest

from driftq.engine.state.segment import SEAL_AWAY
from driftq.system.disk import Disk
from driftq.testing import EngineRig, FaultyDisk

THREADS, WRITER_PROCESSES = None, 1
"""Seeds: who seals."""


@pytest.mark.parametrize("seed", [THREADS, WRITER_PROCESSES])
def test_a_segment_whose_file_lost_its_blocks_with_a_failed_sync_is_not_sealed(seed: int | None) -> None:
    """Its blocks are still in memory, but that is not what a seal makes durable.

    proves: G-IO-5, G-SEG-1
    """

    def strikes(operation: str, path: str) -> bool:
        strikes = operation == "sync" and path.endswith(".data")
        if strikes and not faulty[0].failed:
            rig.disk.open(path).forget_pending()
            rig.disk.open(path).truncate(64)
        return strikes

    faulty: list[FaultyDisk] = []

    def wrap(disk: Disk) -> Disk:
        faulty.append(FaultyDisk(disk, when=strikes))
        return faulty[0] if len(faulty) == 1 else disk

    rig = EngineRig(wrap=wrap, seed=seed, segment_max_events=8)
    rig.put("t")
    rig.write("t", *range(8))
    rig.write("t", *range(8))
    rig.runtime.advance(3000)
    assert faulty[0].failed
    assert [segment.sealed for segment in rig.topic("t").segments] == [False, True]
    rig.checkpoint()
    rig.crash()
    assert (rig.seqs("t"), rig.topic("t").holes.all) == (list(range(1, 17)), [])


@pytest.mark.parametrize(("seed", "sealer"), [(THREADS, "driftq-files"), (WRITER_PROCESSES, "driftq-seals")])
def test_a_graceful_stop_waits_for_segments_that_are_being_sealed(seed: int | None, sealer: str) -> None:
    """What is sealed on disk is a segment for the next start, too: it is not cut again.

    proves: G-SEG-1
    """
    rig = EngineRig(seed=seed, segment_max_events=4)
    rig.put("t")
    rig.write("t", *range(4))
    rig.runtime.hold(sealer)
    for _ in range(2):
        rig.write("t", *range(4))
    closing = rig.engine.close()
    rig.runtime.advance(100)
    assert not closing.settled
    rig.runtime.release(sealer)
    rig.runtime.advance(1000)
    assert closing.result()
    rig.start()
    ranges = [(segment.first_seq, segment.end_seq, segment.sealed) for segment in rig.topic("t").segments]
    assert ranges == [(1, 5, True), (5, 9, True), (9, 13, True)]


@pytest.mark.parametrize("seed", [THREADS, WRITER_PROCESSES])
def test_a_graceful_stop_does_not_wait_for_ever(seed: int | None) -> None:
    """Behind so long a wait the rest is in the last checkpoint.

    proves: G-DUR-10
    """
    rig = EngineRig(seed=seed, segment_max_events=4)
    rig.put("t")
    rig.runtime.hold("driftq-blocks")
    rig.write("t", *range(6))
    closing = rig.engine.close()
    rig.runtime.advance(1000)
    assert not closing.settled
    rig.runtime.advance(2000)
    rig.runtime.release("driftq-blocks")
    rig.runtime.advance(1000)
    assert closing.result()
    rig.start()
    assert rig.seqs("t") == list(range(1, 7))


def test_what_a_writer_process_has_not_done_when_it_is_lost_is_done_by_the_threads() -> None:
    """proves: G-IO-10"""
    rig = EngineRig(seed=WRITER_PROCESSES, segment_max_events=4)
    rig.put("t")
    rig.write("t", *range(4))
    rig.runtime.hold("driftq-blocks")
    rig.runtime.hold("driftq-seals")
    for _ in range(3):
        rig.write("t", *range(4))
    segments, *_ = rig.runtime.writer_processes
    segments.lose()
    rig.runtime.release("driftq-blocks")  # the thread of the server has the same name
    rig.runtime.advance(3000)
    assert all(segment.sealed for segment in rig.topic("t").segments)
    rig.checkpoint()
    rig.crash()
    assert rig.seqs("t") == list(range(1, 17))


def test_a_seal_by_a_writer_process_counts_only_where_nobody_here_has_met_a_failed_sync() -> None:
    """The kernel tells of a failure once: who has not heard of it may have synced nothing.

    proves: G-IO-5
    """
    rig = EngineRig(seed=WRITER_PROCESSES, segment_max_events=4)
    rig.put("t")
    rig.runtime.hold("driftq-seals")
    rig.write("t", *range(4))
    (segment,) = rig.topic("t").segments
    assert SEAL_AWAY in segment.work
    rig.engine.blocks.store.doubt(rig.topic("t").id, segment.first_seq)
    rig.runtime.release("driftq-seals")
    rig.runtime.run_until_idle()
    assert [one.sealed for one in rig.topic("t").segments] == [False]
    rig.runtime.advance(3000)
    assert [one.sealed for one in rig.topic("t").segments] == [True]
    assert not rig.engine.blocks.store.is_doubtful(rig.topic("t").id, segment.first_seq)


@pytest.mark.parametrize("seed", [THREADS, WRITER_PROCESSES])
def test_a_segment_that_is_dropped_before_its_turn_is_not_sealed_any_more(seed: int | None) -> None:
    """Its files are removed; an index that came behind that would stay, and a seal without data fails all others."""
    rig = EngineRig(seed=seed, segment_max_events=4)
    rig.put("t")
    rig.put("capped", cap_records=4)
    directory = f"/data/topics/{rig.topic('capped').id:08d}"
    sealed: list[str] = []
    rig.disk.on_call = lambda call, path: sealed.append(path) if call == "create" and path.endswith(".idx") else None
    for sealer in ("driftq-files", "driftq-seals"):
        rig.runtime.hold(sealer)
    rig.write("t", *range(4))
    for _ in range(6):
        rig.write("capped", *range(4))
    for sealer in ("driftq-files", "driftq-seals"):
        rig.runtime.release(sealer)
    rig.runtime.advance(3000)
    assert [path for path in sealed if path.startswith(directory)] == [f"{directory}/seg-0000000000000021.idx"]
    assert {name.partition(".")[0] for name in rig.disk.names(directory)} == {"seg-0000000000000021"}


def test_a_seal_that_fails_for_want_of_space_leaves_no_doubt_of_the_data() -> None:
    def strikes(operation: str, path: str) -> bool:
        return operation == "create" and path.endswith(".idx")

    rig = EngineRig(
        wrap=lambda disk: FaultyDisk(disk, error=ENOSPC, when=strikes), seed=WRITER_PROCESSES, segment_max_events=4
    )
    rig.put("t")
    rig.write("t", *range(4))
    assert rig.engine.segment_files.failures == 1
    assert not rig.engine.blocks.store.is_doubtful(rig.topic("t").id, 1)
    rig.runtime.advance(3000)
    assert [segment.sealed for segment in rig.topic("t").segments] == [True]
