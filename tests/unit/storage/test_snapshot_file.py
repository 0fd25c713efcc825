"""The snapshot file: bytes, the order of installing it, and which one a start takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftq.storage import snapshot_file as snapshot
from driftq.storage.layout import Layout
from driftq.storage.snapshot_file import (
    Snapshot,
    decode_snapshot,
    encode_snapshot,
    install_snapshot,
    newest_snapshot,
    remove_older,
)
from driftq.system.disk import Site, read_file
from driftq.testing import CrashMode, FaultyDisk, OrderCheckingDisk, SimDisk

SOME = Snapshot({"": (3, 400), "shard-00": (3, 0)}, {"engine": b"\x01\x02"}, [b"topic 1", b"", b"topic 3"])


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    Layout(disk, "/data").prepare()
    return disk


def layout_of(disk: SimDisk) -> Layout:
    return Layout(OrderCheckingDisk(disk), "/data")


def test_it_reads_back() -> None:
    content = encode_snapshot(SOME)
    assert (content[:4], decode_snapshot(content)) == (b"SNP1", SOME)


@given(st.integers(0, len(encode_snapshot(SOME)) - 1), st.integers(1, 255))
def test_no_damaged_byte_is_believed(place: int, mask: int) -> None:
    content = bytearray(encode_snapshot(SOME))
    content[place] ^= mask
    assert decode_snapshot(bytes(content)) is None


@given(st.binary(max_size=100))
def test_no_other_bytes_are_believed(content: bytes) -> None:
    assert decode_snapshot(content) is None


def test_an_unfinished_one_is_none() -> None:
    content = encode_snapshot(SOME)
    for size in range(len(content)):
        assert decode_snapshot(content[:size]) is None


def test_an_installed_one_is_durable_and_found(disk: SimDisk) -> None:
    install_snapshot(layout_of(disk), 5, encode_snapshot(SOME))
    after = disk.crash(CrashMode.DROP, 0)
    assert newest_snapshot(layout_of(after)) == (5, SOME, [])
    assert (disk.synced[Site.SNAPSHOT_FILE], disk.synced[Site.SNAPSHOT_DIR]) == (1, 1)


def test_a_crash_at_any_call_leaves_the_old_one_or_the_new_one(disk: SimDisk) -> None:
    install_snapshot(layout_of(disk), 1, encode_snapshot(SOME))
    newer = Snapshot({}, {}, [b"newer"])
    images: list[SimDisk] = []
    disk.on_call = lambda _, __: images.append(disk.fork())
    install_snapshot(layout_of(disk), 2, encode_snapshot(newer))
    remove_older(layout_of(disk), 2)
    assert len(images) >= 5
    for image in images:
        for mode in CrashMode:
            for seed in range(5):
                number, found, _ = newest_snapshot(layout_of(image.crash(mode, seed)))
                assert (number, found) in ((1, SOME), (2, newer))


def test_a_damaged_newest_one_is_passed_over_and_named(disk: SimDisk) -> None:
    layout = layout_of(disk)
    install_snapshot(layout, 1, encode_snapshot(SOME))
    install_snapshot(layout, 2, encode_snapshot(SOME)[:-1])
    assert newest_snapshot(layout) == (1, SOME, ["/data/meta/snapshot-0000000000000002.bin"])


def test_none_is_none(disk: SimDisk) -> None:
    assert newest_snapshot(layout_of(disk)) == (0, None, [])


def test_removing_older_ones_removes_unfinished_ones_too(disk: SimDisk) -> None:
    layout = layout_of(disk)
    for number in (1, 2, 3):
        install_snapshot(layout, number, encode_snapshot(SOME))
    disk.create("/data/meta/snapshot-0000000000000004.bin.tmp").close()
    remove_older(layout, 3)
    assert disk.names("/data/meta") == ["snapshot-0000000000000003.bin"]


def test_a_failure_at_any_call_leaves_the_old_one(disk: SimDisk) -> None:
    install_snapshot(layout_of(disk), 1, encode_snapshot(SOME))
    for fail_at in range(1, 20):
        image = disk.fork()
        faulty = FaultyDisk(image, fail_at=fail_at)
        try:
            install_snapshot(Layout(faulty, "/data"), 2, encode_snapshot(SOME))
        except OSError:
            assert newest_snapshot(Layout(image, "/data"))[1] == SOME
            continue
        assert not faulty.failed
        return
    raise AssertionError("there is always another call")


@pytest.mark.parametrize("piece", [8, 1000])
def test_what_reads_back_differently_is_not_installed(
    disk: SimDisk, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_PIECE_BYTES", piece)
    layout = layout_of(disk)
    content = encode_snapshot(SOME)

    def rot(operation: str, path: str) -> None:
        if operation == "sync_dir":
            disk.on_call = None
            file = disk.open("/data/meta/snapshot-0000000000000001.bin")
            file.pwritev([b"rot"], 30)
            file.close()

    disk.on_call = rot
    with pytest.raises(OSError, match="does not have the bytes that were written"):
        install_snapshot(layout, 1, content)
    assert read_file(disk, "/data/meta/snapshot-0000000000000001.bin") != content
