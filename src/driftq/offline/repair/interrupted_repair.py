"""What a repair that died has left in a directory, told from what it had found there: its folder has the originals.

Until a checkpoint is installed, log files that the originals do not have are its own, and those of a server that had
just begun: where none has a frame that says anything, they go. Behind that, only a file whose first write was torn.
"""

from driftq.offline.findings import Finding
from driftq.offline.repair.originals import Aside
from driftq.offline.wal_check import Heads, read_heads, sound_frames, was_cut
from driftq.storage.blocks.frame import Kind
from driftq.storage.layout import Layout
from driftq.storage.wal.wal_head import HEAD_BYTES, copies_of
from driftq.storage.wal.wal_reader import is_zero
from driftq.system.disk import Site, read_file

_SAYING_NOTHING = frozenset((Kind.FILE_HEAD, Kind.CHECKPOINT_MARK, Kind.DRAINED, Kind.SPANS))
_MS_PER_S = 1000


class Resume:
    """A directory, and the folder of the first repair that died in it; of none, it is this one's, and nothing holds."""

    def __init__(self, layout: Layout, aside: Aside) -> None:
        self._layout = layout
        self._disk = layout.disk
        self._aside = aside
        self._originals = aside.sources[0]

    def _is_past_checkpoint(self) -> bool:
        """Has a checkpoint been installed since the originals were kept?"""
        return bool({*self._layout.snapshots()[-1:]} - {*self._originals.snapshots()})

    def take_back(self) -> bool:
        """Remove what says nothing of the log; was there any?"""
        if self._originals is self._aside.layout:
            return False
        own = [key for key in self._layout.wal_files() if key not in self._originals.wal_files()]
        heads, _ = read_heads(self._layout)
        empty = [(number, name) for number, name in own if self._is_empty(number, name, heads)]
        if empty != own and not self._is_past_checkpoint():
            return False
        for number, name in empty:
            self._aside.keep(self._layout.wal_path(name, number))
            self._disk.unlink(self._layout.wal_path(name, number))
            self._disk.sync_dir(self._layout.wal_dir(name), Site.WAL_DIR)
        return bool(empty)

    def _is_empty(self, number: int, name: str, heads: Heads) -> bool:
        try:
            content = read_file(self._disk, self._layout.wal_path(name, number))
        except OSError:
            return False
        frames = list(sound_frames(content, number, name, heads))
        end = frames[-1].end if frames else min(len(content), HEAD_BYTES)
        torn = len(content) <= HEAD_BYTES and len(copies_of(content)) < 2
        begun = torn or (was_cut(content, end) and is_zero(content, end))
        if self._is_past_checkpoint() and not begun:
            return False
        return all(frame.kind in _SAYING_NOTHING for frame in frames)

    def is_mended(self, found: Finding) -> bool:
        """Have flags been mended? A checkpoint of the server since does not count what a rebuild wrote behind it."""
        if found.topic_id is None or not self._is_past_checkpoint():
            return False
        return any(found.segment in self._originals.segment_files(found.topic_id, cold=cold) for cold in (False, True))

    def is_later(self, created_ts: int) -> bool:
        """Was a topic made by a server behind the repair that died?"""
        seconds = self._originals.data.rpartition("damaged-")[2].partition(".")[0]
        return self._originals is not self._aside.layout and created_ts // _MS_PER_S > int(seconds)
