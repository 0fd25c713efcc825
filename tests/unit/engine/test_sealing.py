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
