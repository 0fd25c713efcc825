"""Backups of a running server: of one moment, whole, cheap to repeat, and back."""

import logging
import random
from contextlib import suppress
from functools import cache

import pytest
from msgspec import json, structs
from xxhash import xxh3_64_hexdigest

from driftq.errors import NewerFormatError, NotFoundError, StartError, ThrottledError
from driftq.features.backup.backup_files import read_manifests, write_manifest
from driftq.features.backup.backups import Backup
from driftq.features.backup.restore import Restore
from driftq.model.topic_config import Durability
from driftq.offline.verification import verify
from driftq.storage.layout import Layout
from driftq.system.disk import read_file
from driftq.system.entropy import SystemEntropy
from driftq.system.log_facts import FACTS
from driftq.testing import SimDisk
from tests.golden.directory import files_of
from tests.unit.offline.life import Life, contents, overwrite

TO = "/to"


def begun() -> Life:
    """A server with everything, that goes on; its disk has room for a backup."""
    life = Life(SimDisk(roots=("/data", "/cold", TO, "/new", "/newcold")))
    life.put("t", Durability.FSYNC)
    life.put("d", Durability.DISK)
    life.put("q", Durability.FSYNC, type="queue")
    for number in range(40):
        life.write("t", number, tags=[f"t{number}"])
        life.write("d", number)
        life.write("q", number)
    life.delete("t", match="t3")
    life.runtime.advance(12_000)
    life.checkpoint()
    life.delete("t", match="t5")
    return life


def backed_up(life: Life) -> Backup:
    """Take one."""
    life.clock.advance(1000)
    backup = life.server.backups.begin(TO, "server")
    life.runtime.run_until_idle()
    assert (backup.state, backup.error) == ("done", None)
    return backup


def restored(life: Life, backup_id: str | None = None, to: str = "/new") -> Life:
    """A server on what comes back."""
    layout = Layout(life.disk, to, "/newcold")
    Restore(life.disk, TO, layout, SystemEntropy(), backup_id).run()
    assert verify(layout).findings == []
    return Life(life.disk, data_dir=to, cold_dir="/newcold")


def test_what_comes_back_is_what_was_there_at_that_moment() -> None:
    life = begun()
    before = life.picture()
    backed_up(life)
    life.write("t", "later")
    assert restored(life).picture() == before


def test_a_damaged_file_never_stands_for_the_good_one() -> None:
    life = begun()
    path = next(path for path in contents(life.disk) if path.startswith("/data") and path.endswith(".data"))
    good = contents(life.disk)[path][64:65]
    overwrite(life.disk, path, 64, bytes([good[0] ^ 255]))
    found = [backed_up(life).damaged for _ in range(2)]
    assert found[0]
    assert found[0] == found[1], "the second backup tells of it too"
    overwrite(life.disk, path, 64, good)
    assert backed_up(life).damaged == []
    restored(life)


@pytest.mark.parametrize("held", [True, False])
def test_what_happens_while_files_are_copied_is_not_in_it(held: bool) -> None:
    """Writes, deletes with their flags, a dropped topic, checkpoints and moves, all before the first byte is copied."""
    life = begun()
    before = life.picture()
    if held:
        life.runtime.hold("driftq-backup")
    backup = life.server.backups.begin(TO, "server")
    life.runtime.run_until_idle()
    if held:
        assert backup.state == "copying"
        life.write("t", *range(30))
        life.delete("t", before_seq=30)
        life.delete("q", seqs=list(range(1, 30)))
        life.run(life.engine.delete_topic("d"))
        life.checkpoint()
        life.runtime.advance(20_000)
        life.checkpoint()
        life.runtime.release("driftq-backup")
        life.runtime.run_until_idle()
    assert backup.state == "done", backup.error
    assert restored(life).picture() == before


def test_what_was_put_off_is_done_when_the_backup_is() -> None:
    life = begun()
    life.runtime.hold("driftq-backup")
    backup = life.server.backups.begin(TO, "server")
    life.runtime.run_until_idle()
    life.run(life.engine.delete_topic("d"))
    life.runtime.advance(12_000)
    topic_dir = "/data/topics/00000002"
    assert life.disk.names(topic_dir)
    life.runtime.release("driftq-backup")
    life.runtime.run_until_idle()
    assert backup.state == "done"
    life.runtime.advance(12_000)
    assert not life.disk.names(topic_dir)
    life.close()
    assert verify(Layout(life.disk, "/data", "/cold")).findings == []


def test_a_second_backup_copies_what_is_new_and_a_delete_copies_no_segment() -> None:
    life = begun()
    first = backed_up(life)
    assert first.figures.copied_bytes >= first.figures.bytes
    life.clock.advance(1000)
    life.delete("t", seqs=[9, 10])
    life.checkpoint()
    life.checkpoint()
    second = backed_up(life)
    assert second.figures.copied_bytes < first.figures.copied_bytes / 4
    assert [manifest.id for manifest in read_manifests(life.disk, TO)] == [first.id, second.id]
    seqs = {record["$seq"] for record in restored(life, first.id).picture()["t"]}
    assert {9, 10} <= seqs
    assert seqs - {record["$seq"] for record in life.picture()["t"]} == {9, 10}


def test_every_flipped_byte_of_a_backup_is_found_by_a_restore() -> None:
    life = begun()
    backed_up(life)
    rng = random.Random(3)
    paths = [f"{TO}/pool/{name}" for name in life.disk.names(f"{TO}/pool")]
    (backup,) = life.disk.names(f"{TO}/backups")
    paths += [f"{TO}/backups/{backup}/{name}" for name in ("snapshot.bin", "manifest.json")]
    for path in paths:
        disk = life.disk.fork()
        file = disk.open(path)
        place = rng.randrange(file.size())
        file.pwritev([bytes([file.pread(1, place)[0] ^ 4])], place)
        with pytest.raises((StartError, NotFoundError), match=r"damaged|no complete backup"):
            Restore(disk, TO, Layout(disk, "/new", "/newcold"), SystemEntropy()).run()
        assert not disk.names("/new/meta")


HOSTILE_PATHS = (
    "../../victim/.profile",
    "topics/00000001/../../../victim",
    "/victim",
    "meta/snapshot-0000000000000001.bin",
    "topics/00000001/seg-0000000000000001.data/x",
    "topics/00000001/seg-0000000000000001.del",
    ".driftq.lock",
)


@pytest.mark.parametrize("path", HOSTILE_PATHS)
def test_a_manifest_that_names_a_foreign_path_is_refused_before_anything_is_written(path: str) -> None:
    """proves: G-IO-16"""
    life = begun()
    backup = backed_up(life)
    manifest = read_manifests(life.disk, TO)[-1]
    other = structs.replace(manifest.files[0], path=path, cold=False)
    write_manifest(life.disk, TO, structs.replace(manifest, files=[other, *manifest.files[1:]]))
    before = _all_files(life.disk)
    with pytest.raises(StartError, match="a path that no backup contains"):
        Restore(life.disk, TO, Layout(life.disk, "/new", "/newcold"), SystemEntropy(), backup.id).run()
    assert _all_files(life.disk) == before


def test_a_manifest_that_names_a_file_outside_the_pool_is_refused() -> None:
    """proves: G-IO-16"""
    life = begun()
    backed_up(life)
    manifest = read_manifests(life.disk, TO)[-1]
    for changes in (
        {"content": structs.replace(manifest.files[0].content, name="../../etc/shadow")},
        {"flags": structs.replace(manifest.files[0].content, name="flags-../../x-1")},
    ):
        files = [structs.replace(manifest.files[0], **changes), *manifest.files[1:]]
        write_manifest(life.disk, TO, structs.replace(manifest, files=files))
        with pytest.raises(StartError, match="a path that no backup contains"):
            Restore(life.disk, TO, Layout(life.disk, "/new", "/newcold"), SystemEntropy()).run()


def test_a_manifest_in_the_directory_of_another_backup_is_not_used() -> None:
    life = begun()
    backup = backed_up(life)
    path = f"{TO}/backups/{backup.id}/manifest.json"
    line, _, _ = read_file(life.disk, path).partition(b"\n")
    line = line.replace(backup.id.encode(), b"../../elsewhere/bbbb")
    file = life.disk.create(path)
    file.pwritev([b"%b\n%b\n" % (line, xxh3_64_hexdigest(line).encode())], 0)
    file.close()
    with pytest.raises(NotFoundError, match="no complete backup"):
        Restore(life.disk, TO, Layout(life.disk, "/new", "/newcold"), SystemEntropy(), backup.id)


@pytest.mark.parametrize("seed", range(300))
def test_a_restore_of_a_mutated_manifest_is_refused_or_complete(seed: int) -> None:
    """proves: G-IO-16; the checksum of the manifest is right, as that of an attacker is."""
    life = _backed_up_life()
    rng = random.Random(seed)
    backup = read_manifests(life.disk, TO)[-1]
    disk = life.disk.fork()
    path = f"{TO}/backups/{backup.id}/manifest.json"
    line = bytearray(json.encode(backup))
    for _ in range(rng.choice((1, 2, 5))):
        place = rng.randrange(len(line))
        line[place : place + rng.choice((0, 1, 1, 3))] = rng.choice(
            (b"", b"0", b"/", b"..", b"null", b'"', b"9999999", b"a")
        )
    file = disk.create(path)
    file.pwritev([b"%b\n%b\n" % (bytes(line), xxh3_64_hexdigest(bytes(line)).encode())], 0)
    file.close()
    outside = _all_files(disk, _OUTSIDE)
    with suppress(StartError, NotFoundError, NewerFormatError, FileNotFoundError):
        Restore(disk, TO, Layout(disk, "/new", "/newcold"), SystemEntropy()).run()
    assert _all_files(disk, _OUTSIDE) == outside


_OUTSIDE = ("/data", "/cold", TO)


def _all_files(disk: SimDisk, roots: tuple[str, ...] = (*_OUTSIDE, "/new", "/newcold")) -> dict[str, bytes]:
    """Return the content of every file below these directories."""
    return {path: content for root in roots for path, content in files_of(disk, root).items()}


@cache
def _backed_up_life() -> Life:
    """A server with one backup. Do not change it: take a fork of its disk."""
    life = begun()
    backed_up(life)
    return life


def test_a_directory_that_is_not_empty_is_refused() -> None:
    life = begun()
    backed_up(life)
    with pytest.raises(StartError, match="not empty"):
        Restore(life.disk, TO, Layout(life.disk, "/data", "/newcold"), SystemEntropy()).run()


def test_there_is_one_at_a_time_and_a_stop_ends_it() -> None:
    life = begun()
    life.runtime.hold("driftq-backup")
    backup = life.server.backups.begin(TO, "server")
    with pytest.raises(ThrottledError, match="is running"):
        life.server.backups.begin(TO, "server")
    life.runtime.run_until_idle()
    life.runtime.release("driftq-backup")
    life.close()
    assert backup.state in ("done", "failed")
    with pytest.raises(NotFoundError):
        life.server.backups.get("b0000000000000-0000")


def test_the_log_says_what_became_of_a_backup(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    life = begun()
    done = backed_up(life)
    life.server.backups.close()
    life.server.backups.begin("/to/more", "server")
    life.runtime.run_until_idle()
    lines = [(record.levelname, record.message, getattr(record, FACTS)) for record in caplog.records]
    good, bad = [line for line in lines if line[1].startswith("backup ")]
    assert (good[:2], good[2]["backup"], good[2]["to"]) == (("INFO", "backup done"), done.id, TO)
    assert (bad[:2], bad[2]["to"], bool(bad[2]["reason"])) == (("WARNING", "backup failed"), "/to/more", True)
