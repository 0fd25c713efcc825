"""Checks WAL files: which frames they hold, how far each is known to have been synced, and what is wrong with them.

Three things prove that a position was synced: a later frame of the file, the head of the next file in the same run, and
the newest checkpoint, whose positions are the ends of synced marks. An invalid position after the last proof is a torn
end. A file without a readable head has no salt, so nothing in it can be trusted (`storage/wal/wal_head`).
"""

from collections.abc import Iterator
from typing import NamedTuple

from driftq.errors import NewerFormatError
from driftq.offline.findings import Finding, Verdict
from driftq.storage.blocks.block import Block
from driftq.storage.blocks.frame import MAGIC, Bad, Frame, Kind, read_frame
from driftq.storage.layout import Layout
from driftq.storage.wal.wal_head import HEAD_BYTES, WalHead, head_of, is_version_1, whole_head
from driftq.storage.wal.wal_reader import Damage, is_zero, scan_of
from driftq.system.disk import read_file

Heads = dict[tuple[int, str], WalHead | None]
_PAGE = 4096
TORN = "no valid frame starts here, and nothing proves that one was synced"
HEADLESS = "its head cannot be read, and without it no frame in this file can be checked"
CUT = "the file was cut off: its frames end here, and more may have followed"


class WalFileScan(NamedTuple):
    """A file, its bytes, and its frames and findings in order."""

    path: str
    number: int
    content: bytes
    met: Iterator[Frame | Finding]


class WalWalk:
    """The WAL files of one directory, and the positions of a checkpoint."""

    def __init__(self, layout: Layout, positions: dict[str, tuple[int, int]]) -> None:
        self._layout = layout
        self._positions = positions
        self.files = layout.wal_files()
        self.heads, self._newer = read_heads(layout)
        self._ends = {
            (head.body.previous, name): head.body.previous_end
            for (_, name), head in self.heads.items()
            if head is not None
        }

    def synced_end(self, number: int, name: str) -> int:
        """Return up to which offset other files prove that this file was synced."""
        at, offset = self._positions.get(name, (0, 0))
        return max(self._ends.get((number, name), 0), offset if number == at else 0)

    def missing(self, *, based: bool) -> Iterator[Finding]:
        """Yield missing files. `based`: there is a checkpoint; without one, the log must begin with file 1."""
        known = set(self.files)
        needed = {(number, name): "the checkpoint refers to it" for name, (number, at) in self._positions.items() if at}
        for (number, name), head in self.heads.items():
            previous = 0 if head is None else head.body.previous
            if previous and previous >= self._positions.get(name, (0, 0))[0]:
                needed.setdefault((previous, name), f"file {number} follows it")
        for (number, name), why in sorted(needed.items()):
            if (number, name) not in known:
                yield Finding(self._layout.wal_path(name, number), Verdict.MISSING, f"the WAL file is missing: {why}")
        numbers = {number for number, _ in self.files} | {number for number, _ in needed}
        # Offset 0 means that the disk was full and the checkpoint found no file; there may still be none.
        ends = [number for number, offset in self._positions.values() if offset]
        first = min(ends, default=max(numbers, default=0)) if based else 1
        for number in range(first, max(numbers, default=0)):
            if number not in numbers:
                yield Finding(
                    self._layout.wal_path("", number), Verdict.MISSING, "a WAL file with this number is missing"
                )

    def scan(self, number: int, name: str) -> WalFileScan:
        """Read one file. Consume `met` in order and to its end."""
        path = self._layout.wal_path(name, number)
        content = read_file(self._layout.disk, path)
        return WalFileScan(path, number, content, self._walk(path, number, name, content))

    def _walk(self, path: str, number: int, name: str, content: bytes) -> Iterator[Frame | Finding]:
        head = self.heads[number, name]
        if (number, name) in self._newer:
            yield Finding(path, Verdict.DAMAGE, self._newer[number, name])
            return
        if head is None and not is_version_1(number, self.heads):
            synced = self.synced_end(number, name) > 0
            if synced or not is_zero(content, 0):
                unused = not synced and is_zero(content, HEAD_BYTES)
                yield Finding(path, Verdict.DAMAGE, HEADLESS, offset=0, crash=unused)
            return
        yield from _head_findings(path, number, head, content)
        if head is not None and head.version > 1:
            yield head.frame
        scan = scan_of(content, number, head, synced_end=self.synced_end(number, name))
        try:
            for met in scan:
                if isinstance(met, Damage):
                    yield _damaged(path, met)
                else:
                    yield met
                    yield from _frame_findings(path, content, met)
        except NewerFormatError as error:
            yield Finding(path, Verdict.DAMAGE, error.message)
            return
        if was_cut(content, scan.end):
            yield Finding(path, Verdict.DAMAGE, CUT, offset=scan.end)
        elif scan.torn and not is_zero(content, scan.end):
            # A full file may end with zeros that are too few for a frame.
            yield Finding(path, Verdict.TORN, TORN, offset=scan.end, crash=True)


def was_cut(content: bytes, end: int) -> bool:
    """Whether a file whose frames end at `end` was cut off.

    Its size is a multiple of 4096 when it is created, and it is only ever truncated to where its frames end.
    """
    return end != len(content) and len(content) % _PAGE != 0


def read_heads(layout: Layout) -> tuple[Heads, dict[tuple[int, str], str]]:
    """Return the heads of all files (None if unreadable), and messages for files of a newer version."""
    heads: Heads = {}
    newer: dict[tuple[int, str], str] = {}
    for number, name in layout.wal_files():
        heads[number, name] = None
        try:
            heads[number, name] = head_of(layout.disk, layout.wal_path(name, number))
        except NewerFormatError as error:
            newer[number, name] = error.message
        except OSError:
            continue
    return heads, newer


def sound_frames(content: bytes, number: int, name: str, heads: Heads) -> Iterator[Frame]:
    """Yield every frame of a WAL file that the file's salt proves, at any position."""
    head = heads.get((number, name))
    if head is None and not is_version_1(number, heads):
        return
    place, salt = (0, 0) if head is None else (head.frames_at, head.salt)
    while (place := content.find(MAGIC, place)) >= 0:
        found = read_frame(content, place, len(content), salt) if not place % 8 else None
        if isinstance(found, Frame):
            yield found
            place = found.end
        else:
            place += 1


def _damaged(path: str, region: Damage) -> Finding:
    header = region.header
    what = f"{region.end - region.start} bytes are not a valid frame, but were synced"
    if header is None or header.kind != Kind.APPEND:
        return Finding(path, Verdict.DAMAGE, what, offset=region.start, topic_id=header.topic_id if header else None)
    last = header.seq + header.count - 1
    return Finding(path, Verdict.DAMAGE, what, region.start, header.topic_id, header.seq, last)


def _head_findings(path: str, number: int, head: WalHead | None, content: bytes) -> Iterator[Finding]:
    if head is None:
        return  # the walk reports the first bytes as damaged
    if head.frame.synced_to >> 32 != number:
        yield Finding(path, Verdict.DAMAGE, f"its head belongs to file {head.frame.synced_to >> 32}", offset=0)
    if head.version > 1 and content[:HEAD_BYTES] != whole_head(content, head):
        unused = is_zero(content, HEAD_BYTES)
        yield Finding(path, Verdict.DAMAGE, "one of the two copies of its head is damaged", 0, crash=unused)


def _frame_findings(path: str, content: bytes, frame: Frame) -> Iterator[Finding]:
    if frame.kind != Kind.APPEND:
        return
    block = Block.read(content, frame)
    last = frame.seq + frame.count - 1
    if isinstance(block, Bad):
        yield Finding(path, Verdict.DAMAGE, block.why, frame.start, frame.topic_id, frame.seq, last)
    elif block.flags.strip(b"\0"):
        what = "a delete flag is set, but the log has no delete flags"
        yield Finding(path, Verdict.DAMAGE, what, frame.end - frame.count, frame.topic_id, frame.seq, last)
