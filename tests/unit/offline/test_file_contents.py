"""`driftq inspect`: every file of a directory is described, whole or broken."""

import pytest

from driftq.errors import NotFoundError
from driftq.offline.file_contents import files, inside, kind_of
from driftq.testing import SimDisk
from tests.unit.offline.life import contents, frames, layout, lived, overwrite
from tests.unit.offline.life import kind_of as folder_of


@pytest.fixture(scope="module")
def sound() -> SimDisk:
    """A directory behind a graceful stop."""
    return lived().disk


def test_every_file_has_a_row_with_its_size(sound: SimDisk) -> None:
    rows = {str(row["file"]): row for row in files(layout(sound))}
    assert rows.keys() == contents(sound).keys()
    assert all(rows[path]["bytes"] == len(content) for path, content in contents(sound).items())
    assert all(row["holds"] for row in rows.values())
    assert {kind_of(path) for path in rows} == {"wal", "snapshot", "data", "idx", "tags", "parquet", "del", "part"}


def test_a_log_is_shown_frame_by_frame(sound: SimDisk) -> None:
    for path, content in contents(sound).items():
        if folder_of(path) == "wal":
            shown = list(inside(sound, path))
            assert [row["offset"] for row in shown] == [frame.start for frame in frames(content)]
            assert shown[0]["kind"] == "file_head"


def test_blocks_and_their_index_show_the_same(sound: SimDisk) -> None:
    path = next(path for path in contents(sound) if folder_of(path) == "idx")
    entries = list(inside(sound, path))
    blocks = list(inside(sound, path.replace(".idx", ".data")))
    assert [{**block, **entry} for block, entry in zip(blocks, entries, strict=True)] == blocks


def test_a_checkpoint_shows_its_topics(sound: SimDisk) -> None:
    path = next(path for path in contents(sound) if folder_of(path) == "meta")
    shown = list(inside(sound, path))
    assert {row["name"] for row in shown if row["item"] == "topic"} >= {"t.fsync", "t.disk", "capped"}


def test_what_is_broken_is_shown_as_that(sound: SimDisk) -> None:
    for path, content in contents(sound).items():
        disk = sound.fork()
        overwrite(disk, path, min(20, len(content) - 1), b"\xff")
        errors = [row for row in files(layout(disk)) if row["file"] == path]
        assert len(errors) == 1


def test_other_files_are_refused(sound: SimDisk) -> None:
    with pytest.raises(NotFoundError, match="not a file of a data directory"):
        inside(sound, "/data/notes.txt")
    with pytest.raises(NotFoundError, match="does not exist"):
        inside(sound, "/data/wal/wal-0000000000000099.log")
