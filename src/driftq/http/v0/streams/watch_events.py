"""Encodes the events of watches; streams that need the same bytes share them.

Streams at the same position of the same topics are served one after another. So the module keeps the newest result of
each kind, in case the next stream needs it too: one id, one frame, and one joined piece of at most `JOINED_MAX` bytes.
"""

from base64 import b64decode, urlsafe_b64encode
from binascii import Error
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, MsgspecError
from msgspec.json import Decoder, encode

from driftq.http import event_stream as sse

_CURSORS = Decoder(dict[str, Annotated[int, Meta(ge=0)]])


def encode_id(cursors: dict[str, int]) -> bytes:
    """Return the event id of these cursors, which must be sorted by name."""
    return urlsafe_b64encode(encode(cursors)).rstrip(b"=")


def decode_id(text: bytes) -> dict[str, int] | None:
    """Return the cursors in an event id, or None if the text is not an event id."""
    bare = text.strip().rstrip(b"=")
    try:
        return _CURSORS.decode(b64decode(bare + b"=" * (-len(bare) % 4), b"-_", validate=True))
    except (Error, MsgspecError, UnicodeDecodeError, RecursionError):
        return None


JOINED_MAX = 16 << 10
"""Up to this many bytes, joining the pieces costs less than writing them one by one."""


class Frames:
    """The newest encoded results, shared by the streams of one server."""

    def __init__(self) -> None:
        self._cursors: dict[str, int] = {}
        self._id = encode_id({})
        self._end: tuple[bytes, str, int] | None = None
        self._caught_up = b""
        self._parts: list[bytes] = []
        self._joined = b""
        self.last: bytes | None = None
        """The newest joined bytes; None if the newest parts were too long to be joined."""

    def id_of(self, cursors: dict[str, int]) -> bytes:
        """Return the id of an event after which a session is at these cursors."""
        if cursors != self._cursors:
            self._cursors, self._id = cursors, encode_id(cursors)
        return self._id

    def caught_up(self, event_id: bytes, name: str, head_seq: int) -> bytes:
        """Return the `caught-up` frame of a topic."""
        end = (event_id, name, head_seq)
        if end != self._end:
            self._end = end
            self._caught_up = b'%b{"topic":"%b","head_seq":%d}\n\n' % (
                sse.head(b"caught-up", event_id),
                name.encode(),
                head_seq,
            )
        return self._caught_up

    def joined(self, parts: list[bytes]) -> Sequence[bytes]:
        """Return the parts joined into one piece, or unchanged if they exceed `JOINED_MAX` bytes."""
        if parts != self._parts:
            if sum(map(len, parts)) > JOINED_MAX:
                self.last = None
                return parts
            self._parts, self._joined = parts, b"".join(parts)
        self.last = self._joined
        return (self._joined,)
