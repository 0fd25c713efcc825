"""Segments that are sealed, and those that must not be."""

from driftq.seam.disk import Disk
from driftq.testing import EngineRig, FaultyDisk


def test_a_segment_whose_file_lost_its_blocks_with_a_failed_sync_is_not_sealed() -> None:
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

    rig = EngineRig(wrap=wrap, segment_max_events=8)
    rig.put("t")
    rig.write("t", *range(8))
    rig.write("t", *range(8))
    rig.runtime.advance(3000)
    assert faulty[0].failed
    assert [segment.sealed for segment in rig.topic("t").segments] == [False, True]
    rig.checkpoint()
    rig.crash()
    assert (rig.seqs("t"), rig.topic("t").holes.all) == (list(range(1, 17)), [])


def test_a_graceful_stop_waits_for_segments_that_are_being_sealed() -> None:
    """What is sealed on disk is a segment for the next start, too: it is not cut again.

    proves: G-SEG-1
    """
    rig = EngineRig(segment_max_events=4)
    rig.put("t")
    rig.write("t", *range(4))
    rig.runtime.hold("driftq-files")
    for _ in range(2):
        rig.write("t", *range(4))
    closing = rig.engine.close()
    rig.runtime.advance(100)
    assert not closing.settled
    rig.runtime.release("driftq-files")
    rig.runtime.advance(1000)
    assert closing.result()
    rig.start()
    ranges = [(segment.first_seq, segment.end_seq, segment.sealed) for segment in rig.topic("t").segments]
    assert ranges == [(1, 5, True), (5, 9, True), (9, 13, True)]


def test_a_graceful_stop_does_not_wait_for_ever() -> None:
    """Behind so long a wait the rest is in the last checkpoint.

    proves: G-DUR-10
    """
    rig = EngineRig(segment_max_events=4)
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
