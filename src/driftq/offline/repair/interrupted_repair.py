"""Finds what an interrupted repair left in a directory, by comparing it with the originals in that repair's folder.

Until a checkpoint is installed, log files that are not among the originals were written by the repair, or by the server
that it had just started. They are removed if none of them has a frame with content. After the checkpoint is installed,
only a file whose first write was torn is removed.
"""

from driftq.model.units import MS_PER_S
from driftq.offline.findings import Finding
from driftq.offline.repair.originals import Originals
from driftq.offline.wal_check import Heads, read_heads, sound_frames, was_cut
from driftq.storage.blocks.frame import Kind
from driftq.storage.layout import Layout
from driftq.storage.wal.wal_head import HEAD_BYTES, copies_of
from driftq.storage.wal.wal_reader import is_zero
from driftq.system.disk import Site, read_file

_SAYING_NOTHING = frozenset((Kind.FILE_HEAD, Kind.CHECKPOINT_MARK, Kind.DRAINED, Kind.SPANS))


class Resume:
    """Compares a directory with the originals of the first interrupted repair.

    If no repair was interrupted, the originals are those of this repair, and the public methods return False.
    """

    def __init__(self, layout: Layout, originals: Originals) -> None:
        self._layout = layout
        self._disk = layout.disk
        self._originals = originals
        self._source = originals.sources[0]

    def _is_past_checkpoint(self) -> bool:
        """Whether a checkpoint was installed after the originals were kept."""
        return bool({*self._layout.snapshots()[-1:]} - {*self._source.snapshots()})

    def take_back(self) -> bool:
        """Remove log files of the interrupted repair that have no content. Return whether there were any."""
        if self._source is self._originals.layout:
            return False
        own = [key for key in self._layout.wal_files() if key not in self._source.wal_files()]
        heads, _ = read_heads(self._layout)
        empty = [(number, name) for number, name in own if self._is_empty(number, name, heads)]
        if empty != own and not self._is_past_checkpoint():
            return False
        for number, name in empty:
            self._originals.keep(self._layout.wal_path(name, number))
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
        """Whether the interrupted repair already handled the flags of this finding.

        The counts of a later checkpoint of the server do not include the deletes that a rebuild wrote after it.
        """
        if found.topic_id is None or not self._is_past_checkpoint():
            return False
        return any(found.segment in self._source.segment_files(found.topic_id, cold=cold) for cold in (False, True))

    def is_later(self, created_ts: int) -> bool:
        """Whether a topic was created after the interrupted repair."""
        seconds = self._source.data.rpartition("damaged-")[2].partition(".")[0]
        return self._source is not self._originals.layout and created_ts // MS_PER_S > int(seconds)
