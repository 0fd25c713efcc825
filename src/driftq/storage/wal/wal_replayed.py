"""WAL files at a start: read them, make what was replayed durable, and free unused space."""

from driftq.storage.wal.memory_spans import Span, find_spans
from driftq.storage.wal.wal_head import WalHead
from driftq.system.disk import Disk, File, Site, write_fully
from driftq.system.machine import zeros

_PAGE = 4096
_WINDOW = 1 << 20
"""SPANS frames are frequent: a log that ends with spans has one within this many bytes of its end."""


class LogBytes:
    """The bytes of a WAL file that a start reads.

    The spans that are listed near the end of the file are not read: `content` has zeros there until `fill` reads one.
    """

    def __init__(
        self, disk: Disk, path: str, synced_end: int, head: WalHead | None, *, search_all: bool = False
    ) -> None:
        """Read the file, up to `synced_end` if a later file of the same run gave it. Raises OSError.

        `search_all`: search the whole file for a SPANS frame if there is none near its end.
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
        """Read a span that was left out. Raises OSError."""
        if self._whole:
            return
        file = self._disk.open(self._path)
        try:
            file.pread_into(memoryview(self.content)[span.start : span.end], span.start)
        finally:
            file.close()


def _whole(file: File, size: int) -> bytes:
    """Return the first `size` bytes of a file, or fewer if it is shorter."""
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
    """Return the spans that a frame near the end of the file lists, or [] if none is found there.

    The file of a process that died ends with pages of zeros. A binary search finds where they begin.
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
    """Cut off what a file has after its frames: it is never written again, and the disk may be full."""
    file = disk.open(path)
    try:
        if file.size() > end:
            file.truncate(end)
    finally:
        file.close()


def make_durable(disk: Disk, path: str, end: int, unproven: bytes) -> None:
    """Sync a file whose last bytes, `unproven`, may not be durable, and cut off everything after `end`.

    Replayed records are shown from now on, so they must not get lost; a torn tail must not come back. The last bytes
    are written again: if the previous process failed to sync them, the kernel considers their pages clean, and another
    sync would leave them in memory only.
    """
    file = disk.open(path)
    try:
        file.truncate(end)
        write_fully(file, [unproven], end - len(unproven))
        file.sync(Site.WAL_REPLAYED)
    finally:
        file.close()
