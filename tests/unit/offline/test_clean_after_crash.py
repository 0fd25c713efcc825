"""After crashes, a restart and a clean stop nothing is wrong with any file: `verify` has no finding at all."""

import random

import pytest
from msgspec import structs

from driftq.offline.verification import verify
from driftq.storage.layout import Layout
from driftq.system.disk import Site
from driftq.testing import CrashMode, EngineRig, ServerRig, SimDisk
from driftq.testing.engine_rig import SMALL
from tests.unit.features.router.routed_rig import put_router, put_topic

_TOPICS = ("source", "copy", "late", "picked")


def _findings(disk: SimDisk) -> list[str]:
    """Return what is wrong. An engine without a server around it has no id."""
    found = verify(Layout(disk.fork(), "/data")).findings
    return [f"{finding.file}: {finding.what}" for finding in found if finding.file != "/data/.driftq.id"]


# The seeds above 300 leave copies in other blocks than the first time, fewer and larger ones, in the same segment.
@pytest.mark.parametrize("seed", [*range(10), 302, 329, 369, 392])
def test_verify_finds_nothing_after_crashes_a_restart_and_a_clean_stop(seed: int) -> None:
    """proves: G-SEG-7; row: F-FILES-1"""
    rng = random.Random(seed)
    settings = structs.replace(
        SMALL,
        wal_file_bytes=rng.choice([64 << 10, 1 << 20]),
        segment_max_events=rng.choice([24, 100, 700, 3000]),
        wal_shards=rng.choice([1, 1, 2]),
    )
    sizes = [1, 1, 2, 3, 260, 500] if settings.segment_max_events >= 700 else [1, 1, 2, 9, 20]
    rig = ServerRig(settings, disk=SimDisk())
    put_topic(rig, *_TOPICS, durability=rng.choice(["disk", "fsync"]))
    put_router(rig, "one", "source", "copy")
    put_router(rig, "two", "copy", "late")
    put_router(rig, "three", "source", "picked", filter=["tag", "Glob", "a*"])
    for _ in range(4):
        for _ in range(rng.randrange(2, 16)):
            count = rng.choice(sizes)
            topic = rng.choice(["source", "source", "copy", "picked"])
            records = [{"data": number, "tag": rng.choice("ab")} for number in range(count)]
            rig.ok("POST", f"/v0/topics/{topic}", {"records": records})
            if rng.random() < 0.4:
                rig.runtime.advance(rng.choice([5, 50, 1100, 6100]))
            if rng.random() < 0.2:
                rig.server.engine.checkpointer.run()
                rig.run()
        rig.runtime.stop()
        rig = ServerRig(settings, disk=rig.disk.crash(rng.choice(list(CrashMode)), rng.randrange(1 << 30)))
    assert rig.close()
    assert _findings(rig.disk) == []


def _sealed() -> EngineRig:
    """Return a server with one sealed segment that a checkpoint names."""
    rig = EngineRig(segment_max_events=8)
    rig.put("a")
    for number in range(10):
        rig.write("a", number, tags=[f"tag-{number}"])
    rig.runtime.advance(2000)
    assert rig.checkpoint()
    return rig


@pytest.mark.parametrize("suffix", ["tags", "idx"])
@pytest.mark.parametrize("damage", ["gone", "torn"])
def test_a_lost_index_of_a_segment_is_on_disk_again_after_a_restart(suffix: str, damage: str) -> None:
    """proves: G-SEG-7"""
    rig = _sealed()
    path = f"/data/topics/00000001/seg-{1:016}.{suffix}"
    file = rig.disk.open(path)
    whole = file.pread(file.size(), 0)
    if damage == "gone":
        rig.disk.unlink(path)
    else:
        file.pwritev([bytes(len(whole) - 12)], 12)
        file.sync(Site.SEGMENT_IDX)
    rig.crash(CrashMode.KEEP)
    rig.runtime.run_until_idle()
    again = rig.disk.open(path)
    assert again.pread(again.size(), 0) == whole
    assert rig.close()
    assert _findings(rig.disk) == []


def test_a_kill_on_the_same_boot_reads_no_index_again() -> None:
    """A killed process loses nothing that it had written, so that only missing files are looked for."""
    rig = _sealed()
    rig.kill()
    assert rig.engine._recovery.unsure == []
    rig.crash(CrashMode.KEEP)
    assert len(rig.engine._recovery.unsure) == 1


def test_an_index_that_an_earlier_run_left_of_an_open_segment_counts_for_nothing() -> None:
    """The checkpoint names the segment as it was before it was sealed; its records come again from the log."""
    rig = EngineRig(segment_max_events=600, wal_file_bytes=1 << 20)
    rig.put("a")
    rig.write("a", *range(300))
    assert rig.checkpoint()
    rig.write("a", *range(310))
    rig.runtime.advance(2000)
    path = f"/data/topics/00000001/seg-{1:016}.idx"
    assert rig.disk.exists(path)
    held = rig.disk.fork()
    cut = EngineRig(rig.settings, disk=held, clock=rig.clock)
    assert cut.seqs("a") == [*range(1, 611)]
    assert cut.close()
    assert _findings(held) == []


@pytest.mark.parametrize("file_bytes", [20_000, 4097, 65_535])
def test_a_log_whose_files_are_no_round_number_of_bytes_has_not_lost_its_end(file_bytes: int) -> None:
    """proves: G-SEG-7; whatever `--wal-file-bytes` is, also while the server is killed and not started again."""
    rig = ServerRig(structs.replace(SMALL, wal_file_bytes=file_bytes), disk=SimDisk())
    put_topic(rig, "a", durability="fsync")
    for number in range(5):
        rig.write("a", number)
    rig.runtime.stop()
    assert _findings(rig.disk) == []
