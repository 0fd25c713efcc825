"""Keeps originals: copies of files in `damaged-<seconds>` folders, one per directory, with the same relative paths.

A file with unreadable sectors is moved there itself, as `.unreadable`. Its old path, and the copy, get the bytes that
can be read, and 0xFF for the rest, which is neither the end of a log nor a valid flag. So later steps find damage
instead of disk errors.

A folder that contains a file `unfinished` belongs to a repair that was interrupted; its files are sources for the next
repair.

Invariants
- A file that a repair changes or removes has a synced copy before that.
- No file is missing at any moment: an unreadable file gets its second name before another file takes the first one.
"""

import posixpath

from driftq.model.units import MS_PER_S
from driftq.storage.layout import Layout, make_directory
from driftq.system.clock import Clock
from driftq.system.disk import Disk, File, Site, write_fully

_CHUNK = 1 << 20
_SECTOR = 4096
_UNKNOWN = b"\xff"
_UNREADABLE = ".unreadable"
_UNFINISHED = "unfinished"


class Originals:
    """The folders with the originals of one repair."""

    def __init__(self, layout: Layout, clock: Clock) -> None:
        self._layout = layout
        self._disk = layout.disk
        stem = f"damaged-{clock.wall_ms() // MS_PER_S}"
        name, number = stem, 0
        while self._disk.exists(f"{layout.data}/{name}"):
            number += 1
            name = f"{stem}.{number}"
        self.name = name
        self.layout = self._folder(name)
        """The folder of this repair, as the layout of a data directory."""
        others = [self._folder(name) for name in self._disk.names(layout.data) if name.startswith("damaged-")]
        self.sources = [one for one in others if self._disk.exists(f"{one.data}/{_UNFINISHED}")]
        """Folders of interrupted repairs, oldest first, then that of this repair."""
        self.sources.append(self.layout)

    def _folder(self, name: str) -> Layout:
        cold = None if self._layout.cold is None else f"{self._layout.cold}/{name}"
        return Layout(self._disk, f"{self._layout.data}/{name}", cold)

    def begin(self) -> None:
        """Mark the repair as unfinished: all originals are kept, and the changes are about to start."""
        put_file(self._disk, f"{self.layout.data}/{_UNFINISHED}", b"")
        self._disk.sync_dir(self.layout.data, Site.LAYOUT_DIR)

    def finish(self) -> None:
        """Mark this repair and the interrupted ones as finished."""
        for source in reversed(self.sources):
            self._disk.unlink(f"{source.data}/{_UNFINISHED}")
            self._disk.sync_dir(source.data, Site.LAYOUT_DIR)

    def keep(self, path: str) -> None:
        """Copy a file into the folder, unless that was done before."""
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
            self._replace(path, f"{target}{_UNREADABLE}")
            if self._disk.exists(path):
                copy_file(self._disk, path, target)

    def _replace(self, path: str, target: str) -> None:
        """Move an unreadable file to `target`, and put what can be read of it in its place."""
        content = readable(self._disk, path)
        stand_in = f"{target}.part"
        if content is not None:
            put_file(self._disk, stand_in, content)
        try:
            self._disk.link(path, target)
        except OSError:  # no hard links here: a crash may leave the file under its second name only
            self._disk.rename(path, target)
        self._disk.sync_dir(posixpath.dirname(target), Site.LAYOUT_DIR)
        if content is not None:
            self._disk.rename(stand_in, path)
        else:
            self._disk.unlink(path)
        self._disk.sync_dir(posixpath.dirname(path), Site.LAYOUT_DIR)

    def was_unreadable(self, path: str) -> bool:
        """Whether a file of the data directory had unreadable sectors, in this repair or an earlier one."""
        inside = path.removeprefix(f"{self._layout.data}/")
        folders = [name for name in self._disk.names(self._layout.data) if name.startswith("damaged-")]
        return any(self._disk.exists(f"{self._layout.data}/{name}/{inside}{_UNREADABLE}") for name in folders)

    def keep_segment(self, topic_id: int, first_seq: int) -> None:
        """Copy every file of a segment, of both tiers."""
        for suffix in ("data", "idx", "tags", "parquet", "del"):
            if suffix not in ("parquet", "del") or self._layout.cold is not None:
                self.keep(self._layout.segment_path(topic_id, first_seq, suffix))


def copy_file(disk: Disk, source: str, target: str) -> None:
    """Copy a file durably; it is written under a temporary name first."""
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
    """Write a file and sync its content; the caller syncs the directory."""
    file = disk.create(path)
    try:
        write_fully(file, [content], 0)
        file.sync(Site.SEGMENT_DATA)
    finally:
        file.close()


def readable(disk: Disk, path: str) -> bytes | None:
    """Return the content of a file, with 0xFF for unreadable sectors; None if the file cannot be opened."""
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
