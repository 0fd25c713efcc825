"""Spans: stretches of a WAL file that a start may skip, with only Append frames of topics in class `memory`.

The log writer notes spans, and from time to time it writes a SPANS frame into the log, which lists all spans of its
file so far. A start finds the last such frame by a search from the end of the file. So it knows what to skip before it
reads the first frame. `engine/recovery/deferred_load` reads the skipped frames after the server is ready.

    noted: late frame after late frame → closed by any other frame → listed in a SPANS frame, if it is long enough
           a span that grows above 4 MiB is closed, and the next one begins

A *late* frame is one that may be loaded late: an Append frame of a topic in class `memory`.

Invariants
- A SPANS frame lists only bytes that were synced when the frame was made. So a span never hides a torn end: bytes in it
  that are not a frame are damage, and that damage affects only topics of class `memory`.
- Every topic with a frame in a span is in the list of the span.
- A SPANS frame is optional. No sync is made for it, no caller waits for it, and it is left out if there is no room for
  it or it cannot be written. Without it, a start reads frame by frame.
- A span contains late frames and SPANS frames, and no others.

The body is msgpack: a list of [start, end, highest timestamp, [topic ids]]. See `docs/formats/wal.md`.
"""

from struct import Struct as Layoutter

from msgspec import DecodeError, Struct, msgpack

from driftq.storage.blocks.frame import Frame, Kind, control_body, read_frame

SPAN_BYTES_MAX = 4 << 20
"""A longer span is closed. A start reads a span in one piece, and 4 MiB take a few milliseconds."""
SPAN_BYTES_MIN = 4 << 10
"""A shorter span is not listed: reading its frames takes no longer than skipping it."""
TOPICS_MAX = 64
"""A span with this many topics is closed."""
NAMED_BYTES = 256 << 10
"""A new SPANS frame is written after this many more synced bytes of spans. Later ones are read frame by frame."""
_TRIES = 8
_WINDOW = 1 << 18
"""Bytes per search step: few enough for the processor's cache."""
_KIND_AT = 8
_PATTERN = Layoutter("<HHIQQ").pack(Kind.SPANS, 0, 0, 0, 0)
"""The bytes after magic and length of every SPANS frame."""


class Span(Struct, array_like=True, forbid_unknown_fields=True):
    """Bytes [start, end) of a WAL file, the highest timestamp in them, and the ids of their topics."""

    start: int
    end: int
    ts: int
    topics: list[int]


_encode = msgpack.Encoder().encode
_decode = msgpack.Decoder(list[Span]).decode


class SpanNotes:
    """The spans of the file that the writer is writing."""

    def __init__(self) -> None:
        self._closed: list[Span] = []
        self._open: Span | None = None
        self._topics: set[int] = set()
        self._named = 0
        """Bytes of spans that the newest SPANS frame lists."""

    def late(self, start: int, end: int, topic_id: int, ts: int) -> None:
        """Note a frame of a topic of class `memory`, at bytes [start, end)."""
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
        """Close the open span, because it is full or the next frame cannot be part of it.

        A span shorter than 4 KiB is dropped.
        """
        span, self._open = self._open, None
        if span is not None and span.end - span.start >= SPAN_BYTES_MIN:
            self._closed.append(span)

    def named(self, start: int, end: int) -> None:
        """Note a SPANS frame at bytes [start, end): it becomes part of the open span."""
        if self._open is not None and self._open.end == start:
            self._open.end = end

    def body(self, synced: int, *, at_end: bool = False) -> bytes | None:
        """Return the body of a SPANS frame, or None if it would add too little to the last one.

        `at_end`: no other frame follows, so any addition is enough.
        """
        spans = [*self._closed, *([] if self._open is None else [self._open])]
        known = [span for span in spans if span.end <= synced and span.end - span.start >= SPAN_BYTES_MIN]
        size = sum(span.end - span.start for span in known)
        if not known or size - self._named < (1 if at_end else NAMED_BYTES):
            return None
        self._named = size
        return _encode(known)


def find_spans(content: bytes, salt: int, start: int = 0) -> list[Span]:
    """Return the spans that the last SPANS frame in `content` lists, in ascending order. Returns [] if there is none.

    `content` is the file from byte `start` on. `salt` is the salt of the file: it proves that the log writer made the
    frame.
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
    """Return the last position of the pattern before `end`, or -1.

    `content` may be a memory map, whose own search takes many times longer than copying it in pieces.
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
