"""The id of an event: every cursor of its session after it, as base64url of compact JSON (http-v0 §12.3)."""

from base64 import b64decode, urlsafe_b64encode
from binascii import Error
from typing import Annotated

from msgspec import Meta, MsgspecError
from msgspec.json import Decoder, encode

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
