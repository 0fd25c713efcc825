"""Keep originals: copies of files in `damaged-<seconds>` folders, one in each directory, at the places they had.

Invariant: a file that a repair changes or removes has its copy, synced, before.
"""

import posixpath

from driftq.seam.clock import Clock
from driftq.seam.disk import Disk, Site, write_fully
from driftq.storage.layout import Layout, make_directory

_CHUNK = 1 << 20
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
                    copy_file(self._disk, path, target)
                return

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
