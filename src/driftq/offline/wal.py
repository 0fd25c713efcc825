"""One WAL file after another: what its frames are, how far it is known to have been synced, what is wrong with it.

Who proves that a place had been synced: a later frame of the file, the head of the file behind it in the same run, and
the newest checkpoint, whose positions are the ends of synced marks. Behind the last proof a bad place is a torn end.
"""

from collections.abc import Iterator
from typing import NamedTuple

from driftq.errors import NewerFormatError
from driftq.offline.findings import Finding, Verdict
from driftq.seam.disk import read_file
from driftq.storage.block import Block
from driftq.storage.bodies import FileHead, decode_file_head
from driftq.storage.frame import Bad, Frame, Kind, control_body, read_frame
from driftq.storage.layout import Layout
from driftq.storage.wal_reader import Damage, WalScan, is_zero

_HEAD_BYTES_MAX = 256
_PAGE = 4096
TORN = "no frame begins here, and nothing proves that one was synced"
CUT = "the file is shorter than it was made: its frames end here, and more may have followed"


class WalFileScan(NamedTuple):
    """A file, its bytes, and what the walk met in order."""

    path: str
    number: int
    content: bytes
    met: Iterator[Frame | Finding]


class WalWalk:
    """The WAL of one directory, under a checkpoint's positions."""

    def __init__(self, layout: Layout, positions: dict[str, tuple[int, int]]) -> None:
        self._layout = layout
        self._positions = positions
        self.files = layout.wal_files()
        self.heads = {key: head_of(layout, *key) for key in self.files}
        self._ends = {
            (head.previous, name): head.previous_end for (_, name), head in self.heads.items() if head is not None
        }

    def synced_end(self, number: int, name: str) -> int:
        """Up to where others say that a file was synced."""
        at, offset = self._positions.get(name, (0, 0))
        return max(self._ends.get((number, name), 0), offset if number == at else 0)

    def missing(self, *, based: bool) -> Iterator[Finding]:
        """Files that must be there. `based`: there is a checkpoint, else the log must begin at its first file."""
        known = set(self.files)
        needed = {(number, name): "a checkpoint ends in it" for name, (number, at) in self._positions.items() if at}
        for (number, name), head in self.heads.items():
            if head is not None and head.previous and head.previous >= self._positions.get(name, (0, 0))[0]:
                needed.setdefault((head.previous, name), f"file {number} follows it")
        for (number, name), why in sorted(needed.items()):
            if (number, name) not in known:
                yield Finding(self._layout.wal_path(name, number), Verdict.MISSING, f"the WAL file is gone: {why}")
        numbers = {number for number, _ in self.files} | {number for number, _ in needed}
        first = min((at for at, _ in self._positions.values()), default=0) if based else 1
        for number in range(first, max(numbers, default=0)):
            if number not in numbers:
                yield Finding(
                    self._layout.wal_path("", number), Verdict.MISSING, "the numbers of WAL files have a gap here"
                )

    def scan(self, number: int, name: str) -> WalFileScan:
        """One file. What comes of `met` is to be taken in order, and to the end."""
        path = self._layout.wal_path(name, number)
        content = read_file(self._layout.disk, path)
        return WalFileScan(path, number, content, self._walk(path, number, name, content))

    def _walk(self, path: str, number: int, name: str, content: bytes) -> Iterator[Frame | Finding]:
        scan = WalScan(content, number, synced_end=self.synced_end(number, name))
        first = True
        try:
            for met in scan:
                if isinstance(met, Damage):
                    yield _damaged(path, met)
                else:
                    if first:
                        yield from _misplaced(path, number, met)
                    yield met
                    yield from _frame_findings(path, content, met)
                first = False
        except NewerFormatError as error:
            yield Finding(path, Verdict.DAMAGE, error.message)
            return
        if was_cut(content, scan.end):
            yield Finding(path, Verdict.DAMAGE, CUT, offset=scan.end)
        elif scan.torn and not is_zero(content, scan.end):
            # Zeros too few for a frame end a file that is full.
            yield Finding(path, Verdict.TORN, TORN, offset=scan.end, crash=True)


def was_cut(content: bytes, end: int) -> bool:
    """Has a file, whose frames end there, lost its own end? It is made at a round size, or cut where its frames end."""
    return end != len(content) and len(content) % _PAGE != 0


def head_of(layout: Layout, number: int, name: str) -> FileHead | None:
    """What the first frame of a file says, if that can be read."""
    try:
        file = layout.disk.open(layout.wal_path(name, number))
        try:
            content = file.pread(_HEAD_BYTES_MAX, 0)
        finally:
            file.close()
    except OSError:
        return None
    header = read_frame(content, 0, len(content))
    if not isinstance(header, Frame) or header.kind != Kind.FILE_HEAD:
        return None
    return decode_file_head(control_body(content, header))


def _damaged(path: str, region: Damage) -> Finding:
    header = region.header
    what = f"{region.end - region.start} bytes are no frame, and were synced once"
    if header is None or header.kind != Kind.APPEND:
        return Finding(path, Verdict.DAMAGE, what, offset=region.start, topic_id=header.topic_id if header else None)
    last = header.seq + header.count - 1
    return Finding(path, Verdict.DAMAGE, what, region.start, header.topic_id, header.seq, last)


def _misplaced(path: str, number: int, first: Frame) -> Iterator[Finding]:
    if first.kind != Kind.FILE_HEAD:
        yield Finding(path, Verdict.DAMAGE, "its first frame is no file head", offset=0)
    elif first.synced_to >> 32 != number:
        yield Finding(path, Verdict.DAMAGE, f"its head is that of file {first.synced_to >> 32}", offset=0)


def _frame_findings(path: str, content: bytes, frame: Frame) -> Iterator[Finding]:
    if frame.kind != Kind.APPEND:
        return
    block = Block.read(content, frame)
    last = frame.seq + frame.count - 1
    if isinstance(block, Bad):
        yield Finding(path, Verdict.DAMAGE, block.why, frame.start, frame.topic_id, frame.seq, last)
    elif block.flags.strip(b"\0"):
        what = "a delete flag is set, and the log deletes by frames"
        yield Finding(path, Verdict.DAMAGE, what, frame.end - frame.count, frame.topic_id, frame.seq, last)
