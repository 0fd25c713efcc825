"""JSON as text: what a reader gets back of a value, made once out of what the writer sent.

Owns the rules of http-v0 §1.3 that a decoder neither checks nor keeps for us. A value that has been through here is
compact UTF-8: no insignificant whitespace, strings with the fewest escapes; numbers, key order and repeated keys as
written. Its length is the contract's byte accounting.

msgspec checks the grammar of what it only steps over (numbers, literals, escapes, surrogate pairs, control characters),
and its `format` does the same and keeps the bytes of every token. Neither checks UTF-8 outside of decoded strings, nor
depth below Python's own limit: that is done here. Nothing but `InvalidRequestError` leaves this module.
"""

import re
from array import array
from collections.abc import Iterable
from itertools import accumulate
from typing import TypeVar

from msgspec import MsgspecError
from msgspec.json import Decoder, Encoder
from msgspec.json import format as reformat

from driftq.errors import InvalidRequestError
from driftq.model.limits import NESTING_MAX

T = TypeVar("T")

DEEP_BYTES = 2 * (NESTING_MAX + 1)
"""A shorter value cannot nest too deep."""

_SPACE, _NEWLINE, _TAB, _RETURN, _BACKSLASH = b" \n\t\r\\"  # as numbers: `in` is four times as fast with them

_STAND_IN = b"\0"  # cannot stand in JSON

_CHUNK_BYTES = 256 << 10
_LEAF_ROUNDS = 4

_UNICODE = re.compile(rb"(\\u....(?:\\u....)*+)")
_SPARE_ESCAPE = re.compile(rb"\\[u/]")
_ESCAPE = re.compile(rb"\\.")
_QUOTED = re.compile(rb'"[^"]*+"')
_STRINGS = Decoder(list[str])
_ENCODER = Encoder()

_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_BRACKET = bytes(set(range(256)) - set(b'[]{}"'))
_STEPS = bytes.maketrans(b"[]", b"\x01\xff")


def compact(body: bytes) -> bytes:
    """The body without insignificant whitespace; it is UTF-8, and JSON if there was any whitespace to look at."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequestError(f"the body is not UTF-8 (byte {error.start})") from None
    if _SPACE in body or _NEWLINE in body or _TAB in body or _RETURN in body:
        try:
            return reformat(body, indent=-1)
        except RecursionError:
            raise _too_deep() from None
        except MsgspecError as error:
            raise InvalidRequestError(f"the body is not JSON: {error}") from None
    return body


def parse(decoder: Decoder[T], body: bytes) -> T:
    """What the decoder makes of a body that `compact` has seen."""
    try:
        return decoder.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except MsgspecError as error:
        raise InvalidRequestError(f"the body cannot be used: {error}") from None


def with_fewest_escapes(values: Iterable[bytes]) -> list[bytes]:
    """Compact JSON values, their strings rewritten so that only what must be escaped is, in the short form if any.

    A newline cannot stand in compact JSON, so it keeps the values apart while many are rewritten at once.
    """
    text = b"\n".join(values)
    done: list[bytes] = []
    start = 0
    while start < len(text):
        end = text.find(b"\n", start + _CHUNK_BYTES) + 1 or len(text)
        done.append(_rewritten(text[start:end]))
        start = end
    return b"".join(done).split(b"\n")


def has_spare_escapes(text: bytes) -> bool:
    """May `with_fewest_escapes` change this text? The other escapes are already as short as can be."""
    return _BACKSLASH in text and _SPARE_ESCAPE.search(text) is not None


def _rewritten(text: bytes) -> bytes:
    """The same with escaped backslashes out of the way, so that a backslash left over begins an escape."""
    text = text.replace(b"\\\\", _STAND_IN).replace(b"\\/", b"/")
    parts = _UNICODE.split(text)
    if len(parts) > 1:
        runs = _STRINGS.decode(b'["%b"]' % b'","'.join(parts[1::2]))
        parts[1::2] = _ENCODER.encode_lines(runs)[1:-2].split(b'"\n"')
        text = b"".join(parts)
    return text.replace(_STAND_IN, b"\\\\")


def openers(text: bytes) -> int:
    """Brackets and braces that open, in strings too: the text nests at most that deep."""
    return 2 * len(text) - len(text.replace(b"[", b"")) - len(text.replace(b"{", b""))


def check_depth(text: bytes, most: int) -> None:
    """Refuse valid JSON that nests deeper."""
    if len(text) <= 2 * most or openers(text) <= most:
        return
    if _BACKSLASH in text:
        text = _ESCAPE.sub(b"", text)
    text = text.translate(_ONE_KIND, _NO_BRACKET).replace(b'""', b"")
    text = _QUOTED.sub(b"", text)
    for _ in range(_LEAF_ROUNDS):
        text = text.replace(b"[]", b"")
    if text and _LEAF_ROUNDS + max(accumulate(array("b", text.translate(_STEPS)))) > most:
        raise _too_deep()


def _too_deep() -> InvalidRequestError:
    return InvalidRequestError(f"JSON is nested deeper than {NESTING_MAX} levels")
