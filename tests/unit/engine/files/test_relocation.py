"""Which sealed segments go to the cold tier, when, and what happens when that fails."""

import errno

import pytest

from driftq.errors import UnrecoverableError
from driftq.system.disk import read_file
from driftq.testing import EngineRig, FaultyDisk, SimDisk


def moved(rig: EngineRig) -> list[bool]:
    """Of each sealed segment, oldest first: is it cold?"""
    rig.checkpoint()
    rig.runtime.advance(6000)
    return [segment.cold for segment in rig.topic("t").segments if segment.sealed]


def filled(segments: int, **settings: object) -> EngineRig:
    rig = EngineRig(cold_dir="/cold", segment_max_events=8, **settings)  # type: ignore[arg-type]
    rig.put("t")
    for _ in range(segments):
        rig.write("t", *[b'"%b"' % (b"x" * 50)] * 8, tags=["a", "b"] * 4)
    return rig


@pytest.mark.parametrize(
    ("retained", "expected"),
    [(0, [True] * 5), (2, [True, True, True, False, False]), (9, [False] * 5)],
)
def test_the_newest_stay_hot(retained: int, expected: list[bool]) -> None:
    assert moved(filled(5, hot_retain_segments=retained)) == expected


def test_the_stricter_of_the_two_bounds_wins() -> None:
    size = filled(1).topic("t").segments[0].data_bytes
    assert moved(filled(5, hot_retain_segments=4, hot_retain_bytes=2 * size)) == [True, True, True, False, False]
    assert moved(filled(5, hot_retain_segments=1, hot_retain_bytes=4 * size)) == [True, True, True, True, False]


def test_a_moved_segment_leaves_nothing_hot() -> None:
    rig = filled(3, hot_retain_segments=1)
    moved(rig)
    directory = f"{rig.topic('t').id:08X}"
    assert rig.disk.names(f"/cold/topics/{directory}") == [
        "seg-0000000000000001.del",
        "seg-0000000000000001.parquet",
        "seg-0000000000000009.del",
        "seg-0000000000000009.parquet",
    ]
    assert {name.split(".")[0] for name in rig.disk.names(f"/data/topics/{directory}")} == {"seg-0000000000000017"}
    assert rig.seqs("t") == list(range(1, 25))


def test_a_failure_is_tried_again_and_everything_stays_readable() -> None:
    armed = False

    def strikes(_: str, path: str) -> bool:
        return armed and path.startswith("/cold/")

    rig = filled(
        3,
        hot_retain_segments=0,
        wrap=lambda disk: FaultyDisk(disk, error=errno.ENOSPC, forever=True, when=strikes),
    )
    armed = True
    assert moved(rig) == [False] * 3
    assert rig.engine.relocation is not None
    assert rig.engine.relocation.failures > 0
    assert rig.seqs("t") == list(range(1, 25))
    armed = False
    assert moved(rig) == [True] * 3
    assert rig.seqs("t") == list(range(1, 25))


def test_writes_and_tail_reads_go_on_while_a_segment_moves() -> None:
    rig = filled(3, hot_retain_segments=0)
    rig.checkpoint()
    rig.runtime.hold("driftq-files")
    rig.runtime.advance(6000)
    rig.write("t", "meanwhile")
    assert rig.read("t", 24)[0]["data"] == "meanwhile"


def test_a_topic_deleted_while_its_segments_move_leaves_nothing() -> None:
    rig = filled(3, hot_retain_segments=0)
    rig.checkpoint()
    rig.runtime.hold("driftq-files")
    rig.runtime.advance(6000)
    rig.run(rig.engine.delete_topic("t"))
    rig.runtime.release("driftq-files")
    rig.runtime.run_until_idle()
    assert (rig.disk.names("/data/topics"), rig.disk.names("/cold/topics")) == ([], [])


def test_a_deleted_topic_whose_cold_files_are_gone_is_no_obstacle_to_a_start() -> None:
    """The checkpoint still names them; the log behind it tells that the topic is deleted."""
    rig = filled(3, hot_retain_segments=0)
    moved(rig)
    rig.checkpoint()
    rig.run(rig.engine.delete_topic("t"))
    rig.runtime.run_until_idle()
    assert rig.disk.names("/cold/topics") == []
    rig.kill()
    assert list(rig.engine.catalog.visible()) == []
    assert rig.write("t", 1).first_seq == 1


@pytest.mark.parametrize("cold", [None, "/elsewhere", "/nowhere"])
def test_a_start_without_the_cold_tier_it_needs_is_refused_and_touches_nothing(cold: str | None) -> None:
    """A mount that is missing is no damage.

    proves: G-REC-11
    """
    rig = filled(3, hot_retain_segments=0)
    moved(rig)
    rig.close()
    rig.disk.mkdir("/elsewhere")
    before = contents(rig.disk)
    for _ in range(2):
        with pytest.raises(UnrecoverableError, match="cold tier"):
            EngineRig(rig.settings, disk=rig.disk, cold_dir=cold)
        assert contents(rig.disk) == before
    rig.start()
    assert rig.seqs("t") == list(range(1, 25))


def contents(disk: SimDisk, directory: str = "") -> dict[str, bytes]:
    """Every file, and every directory as a file without content."""
    found = {}
    for name in disk.names(directory):
        path = f"{directory}/{name}"
        try:
            found[path] = read_file(disk, path)
        except IsADirectoryError:
            found |= {path: b"", **contents(disk, path)}
    return found


def test_segments_that_moved_behind_the_last_checkpoint_need_the_cold_tier_too() -> None:
    """The checkpoint takes them for hot ones. Without the mount they would seem to be lost.

    proves: G-REC-11
    """
    rig = filled(3, hot_retain_segments=0, checkpoint_interval_ms=1 << 40)
    assert moved(rig) == [True] * 3
    rig.runtime.stop()
    rig.disk = rig.disk.fork()
    with pytest.raises(UnrecoverableError, match="/elsewhere is empty or not there"):
        EngineRig(rig.settings, disk=rig.disk.fork(), cold_dir="/elsewhere")
    rig.start()
    assert rig.seqs("t") == list(range(1, 25))


def test_a_cold_directory_may_be_added_at_any_start() -> None:
    rig = EngineRig(segment_max_events=8)
    rig.write("t", *range(24))
    rig.restart(cold_dir="/cold", hot_retain_segments=0)
    rig.write("t", 1)
    assert moved(rig)[0]
    rig.restart()
    assert rig.seqs("t") == list(range(1, 26))


def test_segments_that_retention_drops_go_from_the_cold_tier_too() -> None:
    rig = filled(4, hot_retain_segments=0)
    moved(rig)
    rig.put("t", cap_records=8)
    for _ in range(3):
        rig.checkpoint()
        rig.runtime.advance(2000)
    directory = f"/cold/topics/{rig.topic('t').id:08X}"
    assert {name.split(".")[0] for name in rig.disk.names(directory)} == {"seg-0000000000000025"}
    rig.crash()
    assert rig.seqs("t") == list(range(25, 33))


def test_a_segment_that_a_checkpoint_saw_half_full_does_not_wait_for_somebody_to_write() -> None:
    """Its hot copy is all that checkpoint knows, so another one must come first, also where nothing is written."""
    rig = EngineRig(cold_dir="/cold", segment_max_events=600, hot_retain_segments=0, checkpoint_interval_ms=3_600_000)
    rig.put("t")
    rig.write("t", *range(300))
    rig.checkpoint()
    rig.write("t", *range(300))
    rig.runtime.advance(20_000)
    assert [segment.cold for segment in rig.topic("t").segments if segment.sealed] == [True]
    rig.crash()
    assert rig.seqs("t") == list(range(1, 601))
