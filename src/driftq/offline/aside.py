"""Keep originals: copies of files in `damaged-<seconds>` folders, one in each directory, at the places they had.

A file that cannot be read whole, for a sector is bad, goes there itself, as `.unreadable`: in its place, and beside it,
stands what can be read of it, and 0xFF for the rest, which is neither the end of a log nor a flag. So whatever comes
behind meets damage, and no error of the disk.

Invariant: a file that a repair changes or removes has its copy, synced, before.
"""

import posixpath

from driftq.seam.clock import Clock
from driftq.seam.disk import Disk, File, Site, write_fully
from driftq.storage.layout import Layout, make_directory

_CHUNK = 1 << 20
_SECTOR = 4096
_UNKNOWN = b"\xff"
_UNREADABLE = ".unreadable"
_MS_PER_S = 1000


class Aside:
    """The folders of one repair."""

    def __init__(self, layout: Layout, clock: Clock) -> None:
        self._layout = layout
        self._disk = layout.disk
        stem = f"damaged-{clock.wall_ms() // _MS_PER_S}"
        name, number = stem, 0
        while self._disk.exists(f"{layout.data}/{name}"):
            number += 1
            name = f"{stem}.{number}"
        self.name = name
        cold = None if layout.cold is None else f"{layout.cold}/{name}"
        self.layout = Layout(self._disk, f"{layout.data}/{name}", cold)
        """The originals, as if they were a data directory."""

    def keep(self, path: str) -> None:
        """Copy a file, once."""
        for root, place in ((self._layout.data, self.layout.data), (self._layout.cold, self.layout.cold)):
            if root is not None and place is not None and path.startswith(f"{root}/"):
                target = f"{place}/{path.removeprefix(f'{root}/')}"
                if self._disk.exists(path) and not self._disk.exists(target):
                    make_directory(self._disk, posixpath.dirname(target))
                    self._copy(path, target)
                return

    def _copy(self, path: str, target: str) -> None:
        try:
            copy_file(self._disk, path, target)
        except OSError:
            content = readable(self._disk, path)
            if content is not None:
                put_file(self._disk, target, content)
                put_file(self._disk, f"{target}.whole", content)
            self._disk.rename(path, f"{target}{_UNREADABLE}")
            if content is not None:
                self._disk.rename(f"{target}.whole", path)
            self._disk.sync_dir(posixpath.dirname(target), Site.LAYOUT_DIR)
            self._disk.sync_dir(posixpath.dirname(path), Site.LAYOUT_DIR)

    def was_unreadable(self, path: str) -> bool:
        """Was it a file of the data directory that could not be read whole?"""
        return self._disk.exists(f"{self.layout.data}/{path.removeprefix(f'{self._layout.data}/')}{_UNREADABLE}")

    def keep_segment(self, topic_id: int, first_seq: int) -> None:
        """Copy every file of a segment, of both tiers."""
        for suffix in ("data", "idx", "tags", "parquet", "del"):
            if suffix not in ("parquet", "del") or self._layout.cold is not None:
                self.keep(self._layout.segment_path(topic_id, first_seq, suffix))


def copy_file(disk: Disk, source: str, target: str) -> None:
    """A durable copy, written under another name first."""
    old, new = disk.open(source), disk.create(f"{target}.part")
    try:
        place, size = 0, old.size()
        while place < size:
            piece = old.pread(min(_CHUNK, size - place), place)
            if not piece:
                break
            place = write_fully(new, [piece], place)
        new.sync(Site.SEGMENT_DATA)
    finally:
        old.close()
        new.close()
    disk.rename(f"{target}.part", target)
    disk.sync_dir(posixpath.dirname(target), Site.LAYOUT_DIR)


def put_file(disk: Disk, path: str, content: bytes) -> None:
    """A file of some bytes, durable but for its name."""
    file = disk.create(path)
    try:
        write_fully(file, [content], 0)
        file.sync(Site.SEGMENT_DATA)
    finally:
        file.close()


def readable(disk: Disk, path: str) -> bytes | None:
    """A file as long as it is, as far as the disk gives its sectors; None where it gives no file."""
    try:
        file = disk.open(path)
    except OSError:
        return None
    try:
        size = file.size()
        return b"".join([_sector(file, place, min(_SECTOR, size - place)) for place in range(0, size, _SECTOR)])
    finally:
        file.close()


def _sector(file: File, place: int, size: int) -> bytes:
    try:
        return file.pread(size, place).ljust(size, _UNKNOWN)
    except OSError:
        return _UNKNOWN * size
