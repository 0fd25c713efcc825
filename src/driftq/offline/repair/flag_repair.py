"""Repairs delete flags that were damaged. No checksum covers flags, but a checkpoint has the number of deleted records.

If the checkpoint has no deletes for a block, all its flags are cleared. A flag that is neither set nor clear counts as
set if that makes the number right. If the number cannot decide, the record counts as live: a repair rather restores a
deleted record than hides a live one.
"""

from collections.abc import Iterable

from driftq.engine.files.topic_checkpoint import TopicCheckpoint
from driftq.offline.findings import Finding
from driftq.offline.repair.checkpoint_frames import frames_by_magic
from driftq.storage.blocks.delete_flags import DELETED
from driftq.storage.layout import Layout
from driftq.system.disk import Disk, Site, read_file, write_fully


class Flags:
    """The flags of a directory, and the topics of a checkpoint by id."""

    def __init__(self, layout: Layout, states: dict[int, TopicCheckpoint]) -> None:
        self._layout = layout
        self._disk = layout.disk
        self._states = states

    def mend(self, findings: Iterable[Finding]) -> None:
        """Repair the flags of every segment that has a finding about its flags."""
        for found in findings:
            if "delete flag" not in found.what or found.topic_id is None or not found.file.startswith(self._roots()):
                continue
            if found.segment is not None:
                self._segment(found.topic_id, found.segment)

    def _roots(self) -> tuple[str, ...]:
        return tuple(f"{root}/" for root in (self._layout.data, self._layout.cold) if root is not None)

    def _segment(self, topic_id: int, first_seq: int) -> None:
        state = self._states.get(topic_id)
        segment = next((one for one in state.segments if one.first_seq == first_seq), None) if state else None
        if segment is None:
            return  # no checkpoint knows this segment, and readers ignore invalid flags
        said = {first: gone for first, _, gone, _ in segment.dead}
        # Rows that retention has passed count as gone without a flag, so the number of flags decides nothing.
        sure = state is not None and state.earliest <= first_seq
        path = self._layout.segment_path(topic_id, first_seq, "data")
        if not self._disk.exists(path):
            self._cold(topic_id, first_seq, sum(said.values()), sure=sure)
            return
        content = read_file(self._disk, path)
        for frame in frames_by_magic(content):
            start = frame.end - frame.count
            flags = _mended(content[start : frame.end], said.get(frame.seq, 0), sure=sure)
            overwrite(self._disk, path, flags, start)

    def _cold(self, topic_id: int, first_seq: int, said: int, *, sure: bool) -> None:
        path = self._layout.segment_path(topic_id, first_seq, "del")
        content = read_file(self._disk, path)
        overwrite(self._disk, path, _mended(content[24:], said, sure=sure), 24)


def overwrite(disk: Disk, path: str, content: bytes, place: int) -> None:
    """Overwrite bytes of a file at `place` and sync."""
    file = disk.open(path)
    try:
        write_fully(file, [content], place)
        file.sync(Site.SEGMENT_FLAG)
    finally:
        file.close()


def _mended(flags: bytes, said: int, *, sure: bool) -> bytes:
    """Return flags that match the checkpoint's number of deleted records if possible; unclear flags are cleared."""
    if not said:
        return bytes(len(flags))
    odd = flags.translate(None, bytes([0, DELETED]))
    was_set = sure and flags.count(DELETED) + len(odd) == said
    return bytes(DELETED if flag == DELETED or (flag and was_set) else 0 for flag in flags)
