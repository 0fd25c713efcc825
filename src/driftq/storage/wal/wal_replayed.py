"""What a start does to the WAL files that it reads: nothing that it showed may get lost, and no space is wasted."""

from driftq.storage.wal.memory_spans import Span, find_spans
from driftq.storage.wal.wal_head import WalHead
from driftq.system.disk import Disk, File, Site, write_fully
from driftq.system.machine import zeros

_PAGE = 4096
_WINDOW = 1 << 20
"""Spans are named so often that a log which ends with them has a frame that does in its last bytes."""


class LogBytes:
    """The bytes of a WAL file that a start reads.

    Spans that the last pages of the file name are left out: there are zeros in their place until somebody fills one in.
    """

    def __init__(
        self, disk: Disk, path: str, synced_end: int, head: WalHead | None, *, search_all: bool = False
    ) -> None:
        """Read all of it, or up to the end that a later file of the same run knows of. Raises OSError.

        `search_all`: spans are worth a search of the whole file for a frame that names them.
        """
        self._disk = disk
        self._path = path
        file = disk.open(path)
        try:
            size = synced_end or file.size()
            salt = None if head is None else head.salt
            self.spans: list[Span] = [] if salt is None else _spans_at_end(file, size, salt)
            if self.spans:
                self.content = zeros(size)
                for start, end in _between(self.spans, size):
                    file.pread_into(memoryview(self.content)[start:end], start)
                return
            self.content = _whole(file, size)
        finally:
            file.close()
        if search_all and salt is not None:
            self.spans = find_spans(self.content, salt)
        self._whole = True

    _whole = False

    def fill(self, span: Span) -> None:
        """Read a span after all. Raises OSError."""
        if self._whole:
            return
        file = self._disk.open(self._path)
        try:
            file.pread_into(memoryview(self.content)[span.start : span.end], span.start)
        finally:
            file.close()


def _whole(file: File, size: int) -> bytes:
    """Return the first `size` bytes of a file, fewer where it is shorter."""
    if not size:
        return b""
    content = zeros(size, all_used=True)
    got = file.pread_into(memoryview(content), 0)
    return content if got == size else content[:got]


def _between(spans: list[Span], size: int) -> list[tuple[int, int]]:
    """Return the stretches that no span covers."""
    starts = [0, *(span.end for span in spans)]
    return list(zip(starts, [*(span.start for span in spans), size], strict=True))


def _spans_at_end(file: File, size: int, salt: int) -> list[Span]:
    """Return the spans that a frame near the end of the file names; none where none is found there.

    A file whose process died ends with zeros, page after page; where the zeros begin is found by halving.
    """
    low, high = 0, -(-size // _PAGE)
    if high and any(file.pread(_PAGE, (high - 1) * _PAGE)):
        low = high
    while low < high:
        middle = (low + high) // 2
        if any(file.pread(_PAGE, middle * _PAGE)):
            low = middle + 1
        else:
            high = middle
    end = min(low * _PAGE, size)
    start = max(0, end - _WINDOW)
    return [span for span in find_spans(file.pread(end - start, start), salt, start) if span.end <= size]


def cut_file(disk: Disk, path: str, end: int) -> None:
    """Give back what a file has behind its frames: nothing is written to it any more, and the disk may be full."""
    file = disk.open(path)
    try:
        if file.size() > end:
            file.truncate(end)
    finally:
        file.close()


def make_durable(disk: Disk, path: str, end: int, unproven: bytes) -> None:
    """Sync a file whose last bytes, `unproven`, are not known to be durable, and cut off what is behind `end`.

    What was replayed is shown from now on, so it must not get lost; what was torn off must not come back. The end is
    written again: if a sync of it failed in the process before, these pages count as clean, and another sync would
    leave them where they are, in memory.
    """
    file = disk.open(path)
    try:
        file.truncate(end)
        write_fully(file, [unproven], end - len(unproven))
        file.sync(Site.WAL_REPLAYED)
    finally:
        file.close()
