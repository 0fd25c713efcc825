"""Stretches of a WAL file that a start may pass over: nothing but Append frames of topics in class `memory`.

The log writer notes them, and writes what it has noted into the log now and then (kind SPANS): each such frame names
all spans of its file so far. A start finds the last one from the end of the file, and so knows where to jump before it
reads the first frame. `engine/recovery/deferred_load` reads what was passed over when the server is ready.

    noted: late frame after late frame → closed by any other frame → named by a SPANS frame, if it is long enough
           a span that grows beyond 4 MiB is closed, and the next one begins

Invariants
- A span is named only as far as it was synced when the frame that names it was made. So it never hides a torn end:
  bytes in it that are no frame are damage, and damage there costs topics of class `memory` alone.
- Every topic with a frame in a span is in its list.
- A SPANS frame is an aid: no sync is made for it, no caller waits for it, and one that has no room or that cannot be
  written is left out. Without it a start reads frame by frame.
- Frames of this kind may stand inside a span. Nothing else may but late frames.

The body is msgpack: a list of [start, end, highest stamp, [topic ids]]. `docs/formats/wal.md`.
"""

from struct import Struct as Layoutter

from msgspec import DecodeError, Struct, msgpack

from driftq.storage.blocks.frame import Frame, Kind, control_body, read_frame

SPAN_BYTES_MAX = 4 << 20
"""A start reads a span as a whole: a few milliseconds."""
SPAN_BYTES_MIN = 4 << 10
"""What is shorter is read as quickly as it is named."""
TOPICS_MAX = 64
"""A span of more topics is closed."""
NAMED_BYTES = 256 << 10
"""After so many synced bytes of spans they are named again: what is not named yet is read frame by frame."""
_TRIES = 8
_WINDOW = 1 << 18
"""So many bytes are searched at a time: they are in the processor's cache when they are."""
_KIND_AT = 8
_PATTERN = Layoutter("<HHIQQ").pack(Kind.SPANS, 0, 0, 0, 0)
"""What stands behind magic and length of every SPANS frame."""


class Span(Struct, array_like=True, forbid_unknown_fields=True):
    """One stretch: bytes [start, end) of the file, the highest stamp in it, and the topics."""

    start: int
    end: int
    ts: int
    topics: list[int]


_encode = msgpack.Encoder().encode
_decode = msgpack.Decoder(list[Span]).decode


class SpanNotes:
    """What the writer notes of the current file."""

    def __init__(self) -> None:
        self._closed: list[Span] = []
        self._open: Span | None = None
        self._topics: set[int] = set()
        self._named = 0
        """Bytes of spans that the newest SPANS frame names."""

    def late(self, start: int, end: int, topic_id: int, ts: int) -> None:
        """Note a frame of a topic of class `memory`."""
        span = self._open
        if span is None or span.end != start or span.end - span.start >= SPAN_BYTES_MAX:
            self.other()
            span = self._open = Span(start, start, ts, [])
            self._topics = set()
        span.end = end
        span.ts = max(span.ts, ts)
        if topic_id not in self._topics:
            self._topics.add(topic_id)
            span.topics.append(topic_id)
            if len(span.topics) >= TOPICS_MAX:
                self.other()

    def other(self) -> None:
        """Note that another frame comes: the span ends."""
        span, self._open = self._open, None
        if span is not None and span.end - span.start >= SPAN_BYTES_MIN:
            self._closed.append(span)

    def named(self, start: int, end: int) -> None:
        """Note where a SPANS frame stands: it does not end a span."""
        if self._open is not None and self._open.end == start:
            self._open.end = end

    def body(self, synced: int, *, at_end: bool = False) -> bytes | None:
        """Return the body of a SPANS frame, or None where it would name too little that the last one does not.

        `at_end`: no other frame follows, so that nothing is too little.
        """
        spans = [*self._closed, *([] if self._open is None else [self._open])]
        known = [span for span in spans if span.end <= synced and span.end - span.start >= SPAN_BYTES_MIN]
        size = sum(span.end - span.start for span in known)
        if not known or size - self._named < (1 if at_end else NAMED_BYTES):
            return None
        self._named = size
        return _encode(known)


def find_spans(content: bytes, salt: int, start: int = 0) -> list[Span]:
    """Return the spans of a file as the last SPANS frame in `content` names them, in their order; else none.

    `content` is the file from byte `start` on. `salt` is that of the file: only the log writer can have made the frame.
    """
    end = len(content)
    for _ in range(_TRIES):
        found = _last(content, end)
        if found < _KIND_AT:
            break
        frame = read_frame(content, found - _KIND_AT, len(content), salt)
        if isinstance(frame, Frame):
            return _checked(control_body(content, frame), start + frame.start)
        end = found
    return []


def _last(content: bytes, end: int) -> int:
    """Return the last place of the pattern before `end`, or -1.

    `content` may be a memory map, whose own search takes many times longer than copies do.
    """
    while end >= len(_PATTERN):
        start = max(0, end - _WINDOW)
        found = content[start:end].rfind(_PATTERN)
        if found >= 0:
            return start + found
        end = start + len(_PATTERN) - 1 if start else 0
    return -1


def _checked(body: bytes, before: int) -> list[Span]:
    try:
        spans = _decode(body)
    except DecodeError:
        return []
    place = 0
    for span in spans:
        if not place <= span.start < span.end <= before:
            return []
        place = span.end
    return spans
