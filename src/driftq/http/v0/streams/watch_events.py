"""The bytes of a watch's events, made once for watchers who are told the same.

Those who stand at the same place of the same topics are served one behind the other. So what was made last is kept, for
whoever asks for the same next: one id, one frame, one joined piece, and of no more than `JOINED_MAX` bytes.
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
    """The id of cursors that stand in the order of their names."""
    return urlsafe_b64encode(encode(cursors)).rstrip(b"=")


def decode_id(text: bytes) -> dict[str, int] | None:
    """The cursors of an id, or None for what is no id."""
    bare = text.strip().rstrip(b"=")
    try:
        return _CURSORS.decode(b64decode(bare + b"=" * (-len(bare) % 4), b"-_", validate=True))
    except (Error, MsgspecError, UnicodeDecodeError, RecursionError):
        return None


JOINED_MAX = 16 << 10
"""Up to so many bytes, one piece more to hand over costs more than a copy."""


class Frames:
    """What was made last."""

    def __init__(self) -> None:
        self._cursors: dict[str, int] = {}
        self._id = encode_id({})
        self._end: tuple[bytes, str, int] | None = None
        self._caught_up = b""
        self._parts: list[bytes] = []
        self._joined = b""
        self.last: bytes | None = None
        """What was joined last; None if that was left in its parts."""

    def id_of(self, cursors: dict[str, int]) -> bytes:
        """The id of an event after which a session stands here."""
        if cursors != self._cursors:
            self._cursors, self._id = cursors, encode_id(cursors)
        return self._id

    def caught_up(self, event_id: bytes, name: str, head_seq: int) -> bytes:
        """The frame that says so."""
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
        """The same bytes in one piece, or as they are where they are many."""
        if parts != self._parts:
            if sum(map(len, parts)) > JOINED_MAX:
                self.last = None
                return parts
            self._parts, self._joined = parts, b"".join(parts)
        self.last = self._joined
        return (self._joined,)
