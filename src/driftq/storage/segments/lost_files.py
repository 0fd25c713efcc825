"""The files of segments that were given up. They are kept in `lost/`, so that an operator can inspect or salvage them.

A segment is given up when all its records are holes or deleted, and at least one hole is damage. Its files move from
`topics/` to `lost/` in the same root. They stay until the topic is deleted or retention has passed their records.

Crash order of a move: make the new names as hard links, make them durable, then remove the old names. So after every
crash a file has at least one of its names, and the next start repeats an incomplete move. On a file system without hard
links a rename is used instead; there, a power loss may lose a file.
"""

import errno
from functools import partial

from driftq.storage.layout import Layout
from driftq.system.disk import Site

_NO_LINKS = frozenset((errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EACCES))


class LostFiles:
    """The files in `lost/`, in both roots. The calls block: they are for threads and starts."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._lost = layout.lost()
        self._disk = layout.disk
        self.segments: dict[int, dict[int, int]] = {}
        """Number of files by topic id and first seq. Written by one thread, read by any."""

    def count(self) -> int:
        """Return how many files are in `lost/`."""
        return sum(sum(files.values()) for files in list(self.segments.values()))

    def look(self) -> None:
        """Count the files that are there. Raises OSError."""
        self.segments = {}
        for cold in self._tiers():
            for topic_id in self._lost.topic_ids(cold=cold):
                for first_seq, suffixes in self._lost.segment_files(topic_id, cold=cold).items():
                    self._add(topic_id, first_seq, len(suffixes))

    def keep(self, topic_id: int, first_seq: int) -> None:
        """Move the files of a segment to `lost/`. Raises OSError."""
        for cold in self._tiers():
            suffixes = sorted(self._layout.segment_files(topic_id, cold=cold).get(first_seq, ()))
            if suffixes:
                self._make_directory(topic_id, cold=cold)
                self._move(topic_id, first_seq, suffixes, cold=cold)
                self._add(topic_id, first_seq, len(suffixes))

    def _add(self, topic_id: int, first_seq: int, files: int) -> None:
        known = self.segments.setdefault(topic_id, {})
        known[first_seq] = known.get(first_seq, 0) + files

    def _tiers(self) -> tuple[bool, ...]:
        return (False,) if self._layout.cold is None else (False, True)

    def _make_directory(self, topic_id: int, *, cold: bool) -> None:
        """Make the directory durable, even if it exists: the process that made it may have died before the sync."""
        root = self._layout.cold if cold else self._layout.data
        lost = self._lost.cold if cold else self._lost.data
        assert root is not None
        assert lost is not None
        topics = self._lost.topics_dir(cold=cold)
        for parent, path in ((root, lost), (lost, topics), (topics, self._lost.topic_dir(topic_id, cold=cold))):
            self._disk.mkdir(path)
            self._disk.sync_dir(parent, Site.LOST_TOPIC_DIR)

    def _move(self, topic_id: int, first_seq: int, suffixes: list[str], *, cold: bool) -> None:
        path_of = partial(Layout.segment_path, topic_id=topic_id, first_seq=first_seq)
        moves = [(path_of(self._layout, suffix=suffix), path_of(self._lost, suffix=suffix)) for suffix in suffixes]
        for old, new in moves:
            try:
                self._disk.link(old, new)
            except FileExistsError:
                pass  # left by an incomplete move
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                self._disk.rename(old, new)
        self._disk.sync_dir(self._lost.topic_dir(topic_id, cold=cold), Site.LOST_DIR)
        for old, _ in moves:
            self._disk.unlink(old)

    def drop(self, topic_id: int, first_seq: int) -> None:
        """Remove the files of a segment that retention has passed. Raises OSError."""
        for cold in self._tiers():
            for suffix in self._lost.segment_files(topic_id, cold=cold).get(first_seq, ()):
                self._disk.unlink(self._lost.segment_path(topic_id, first_seq, suffix))
        self.segments.get(topic_id, {}).pop(first_seq, None)

    def drop_topic(self, topic_id: int) -> None:
        """Remove all lost files of a deleted topic."""
        for cold in self._tiers():
            self._disk.remove_tree(self._lost.topic_dir(topic_id, cold=cold))
        self.segments.pop(topic_id, None)
