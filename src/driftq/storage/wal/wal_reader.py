"""Walk the frames of one WAL file, and distinguish a torn tail from damage in the middle (http-v0 §19.2).

The first bytes that are not a frame have one of two causes. If they had been synced, they are *damage*: what follows is
kept. If not, the log ends there, whatever bytes follow: an unsynced tail may come back torn or in pieces. The bytes are
known to have been synced if a later frame of this file has a `synced_to` above them, or if there is a later file of the
same run, because that begins only when this one is synced to its end.

Results are values: a `Frame`, a `Damage`, and finally `end` and `torn`. A frame of a newer version raises.
"""

from collections.abc import Iterator
from typing import NamedTuple

from driftq.storage.blocks.frame import MAGIC, NO_MAGIC, Bad, Frame, NewerVersion, read_frame
from driftq.storage.blocks.single_record_frames import SingleRecordRun, read_run
from driftq.storage.format_version import newer
from driftq.storage.wal.memory_spans import Span
from driftq.storage.wal.wal_head import WalHead

_OFFSET = (1 << 32) - 1
_ZEROS = bytes(1 << 20)


class Damage(NamedTuple):
    """Bytes that had been synced and are not a frame. `header` is their frame header if its checksum is right."""

    start: int
    end: int
    header: Frame | None


def is_zero(buffer: bytes, place: int) -> bool:
    """Whether all bytes from `place` on are zeros. Nearly every file ends like this."""
    size = len(buffer)
    while place < size and buffer[place : place + len(_ZEROS)] == _ZEROS[: size - place]:
        place += len(_ZEROS)
    return place >= size


def scan_of(buffer: bytes, number: int, head: WalHead | None, start: int = 0, *, synced_end: int = 0) -> "WalScan":
    """Return a walk over file `number`, from its first frame or from `start`, with the salt of its head."""
    if head is None:
        return WalScan(buffer, number, start, synced_end=synced_end)
    scan = WalScan(buffer, number, max(start, head.frames_at), synced_end=synced_end, salt=head.salt)
    scan.written_by = head.body.written_by
    return scan


class WalScan:
    """One walk over the bytes of a WAL file, from `start`."""

    def __init__(self, buffer: bytes, number: int, start: int = 0, *, synced_end: int = 0, salt: int = 0) -> None:
        self._buffer = buffer
        self.salt = salt
        self._number = number
        self._synced = synced_end
        self._looked_ahead = False
        self.written_by = ""
        """The DriftQ version that wrote the file, or "" if unknown."""
        self._next = start
        """Offset of the frame after the last one that the walk yielded."""
        self.end = start
        """After the walk: the offset at which the log ends."""
        self.spans: list[Span] = []
        """Spans to yield in one piece, in ascending order."""
        self.torn = False
        """After the walk: whether the bytes after `end` are an incomplete write."""

    @property
    def proven(self) -> int:
        """Return the offset up to which the file is known to have been synced."""
        return self._synced

    def __iter__(self) -> Iterator[Frame | Damage]:
        for found in self.walk():
            assert not isinstance(found, Span), "use walk() if there are spans"
            yield found

    def walk(self) -> Iterator[Frame | Damage | Span]:
        """Yield frames and damage up to the end of the log. Yield each span of `spans` instead of its frames."""
        buffer, size, place = self._buffer, len(self._buffer), self.end
        number, known, salt = self._number, 0, self.salt
        spans = iter(self.spans)
        span = next(spans, None)
        while True:
            if span is not None and place >= span.start:
                if place == span.start:
                    self._next = span.end
                    yield span
                    place = self._next
                    if place == span.end:
                        self._synced = max(self._synced, span.end)
                span = next(spans, None)
                continue
            found = read_frame(buffer, place, size, salt)
            if type(found) is Frame:
                self._next = found.end
                yield found
                place = self._next
                synced_to = found.synced_to
                if synced_to > known and synced_to >> 32 == number:
                    known = synced_to
                    self._synced = max(self._synced, synced_to & _OFFSET)
                continue
            if place >= self._synced and (place >= size or (found is NO_MAGIC and is_zero(buffer, place))):
                self.end = place
                return
            if isinstance(found, NewerVersion):
                what = f"a frame of format version {found.version} at byte {place} of WAL file {self._number}"
                raise newer(what, self.written_by)
            assert isinstance(found, Bad)
            region = self._damage(place, found.header)
            if region is None:
                self.end = place
                self.torn = True
                return
            yield region
            place = region.end

    def walk_into(self, span: Span) -> None:
        """Make the walk yield the frames of the span that it just yielded."""
        self._next = span.start

    def singles(self, topic_id: int, seq: int, *, rows_max: int, bytes_max: int) -> SingleRecordRun | None:
        """Return the run of one-record frames after the last frame, and move the walk past it."""
        run = read_run(
            self._buffer,
            self._next,
            number=self._number,
            topic_id=topic_id,
            seq=seq,
            rows_max=rows_max,
            bytes_max=bytes_max,
            salt=self.salt,
        )
        if run is not None:
            self._next = run.end
            self._synced = max(self._synced, run.synced_to & _OFFSET)
        return run

    def _damage(self, place: int, header: Frame | None) -> Damage | None:
        """Return the damaged region at `place`, or None if the log ends there."""
        self._look_ahead(place)
        if header is not None and header.end <= max(self._synced, 0):
            return Damage(place, header.end, header)
        if place >= self._synced:
            return None
        following = next(self._frames_behind(place), None)
        # A torn tail may follow directly: it begins where the synced bytes end.
        end = self._synced if following is None else min(following.start, self._synced)
        # A damaged region also ends where the next span begins.
        end = min([end, *(span.start for span in self.spans if span.start > place)])
        return Damage(place, end, None)

    def _look_ahead(self, place: int) -> None:
        """Collect from every later frame of this file how far the file was synced."""
        if self._looked_ahead:
            return
        self._looked_ahead = True
        for frame in self._frames_behind(place):
            if frame.synced_to >> 32 == self._number:
                self._synced = max(self._synced, frame.synced_to & _OFFSET)

    def _frames_behind(self, place: int) -> Iterator[Frame]:
        """Yield the valid frames after a bad place, found by their magic."""
        buffer, size = self._buffer, len(self._buffer)
        place += 8
        while (place := buffer.find(MAGIC, place)) >= 0:
            if place & 7:
                place += 1
                continue
            found = read_frame(buffer, place, size, self.salt)
            if isinstance(found, Frame):
                yield found
                place = found.end
            else:
                place += 8
