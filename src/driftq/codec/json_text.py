"""JSON as text: the form in which a value is stored and returned, made once from the bytes of the writer.

Owns the rules of http-v0 §1.3 that a decoder does not enforce. A value that has passed this module is compact UTF-8: no
insignificant whitespace, strings with the fewest escapes; numbers, key order and repeated keys as written. Its length
is the size that the contract counts.

msgspec checks the grammar of values that it skips (numbers, literals, escapes, surrogate pairs, control characters),
and its `format` does the same and keeps the bytes of every token. Neither checks UTF-8 outside of decoded strings, nor
a depth below Python's own limit: this module does both. It raises only `InvalidRequestError`.
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
"""A shorter value cannot exceed the nesting limit."""

_SPACE, _NEWLINE, _TAB, _RETURN, _BACKSLASH = b" \n\t\r\\"  # as integers: `in` is four times as fast with them

_STAND_IN = b"\0"  # never part of JSON text

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
    """Return the body without insignificant whitespace. Raises InvalidRequestError if it is not UTF-8.

    JSON is checked only if there is whitespace to remove.
    """
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
    """Decode a body that `compact` has returned. Raises InvalidRequestError."""
    try:
        return decoder.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except MsgspecError as error:
        raise InvalidRequestError(f"the body is invalid: {error}") from None


def with_fewest_escapes(values: Iterable[bytes]) -> list[bytes]:
    """Return compact JSON values in which only what must be escaped is escaped, in the short form if there is one.

    Compact JSON has no newlines, so newlines separate the values while many are rewritten at once.
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
    """Whether `with_fewest_escapes` may change this text: whether it has an escape that can be shorter."""
    return _BACKSLASH in text and _SPARE_ESCAPE.search(text) is not None


def _rewritten(text: bytes) -> bytes:
    """Rewrite escapes. Escaped backslashes are replaced meanwhile, so that every other backslash begins an escape."""
    text = text.replace(b"\\\\", _STAND_IN).replace(b"\\/", b"/")
    parts = _UNICODE.split(text)
    if len(parts) > 1:
        runs = _STRINGS.decode(b'["%b"]' % b'","'.join(parts[1::2]))
        parts[1::2] = _ENCODER.encode_lines(runs)[1:-2].split(b'"\n"')
        text = b"".join(parts)
    return text.replace(_STAND_IN, b"\\\\")


def openers(text: bytes) -> int:
    """Return the number of opening brackets and braces, in strings too: the text cannot be nested deeper."""
    return 2 * len(text) - len(text.replace(b"[", b"")) - len(text.replace(b"{", b""))


def check_depth(text: bytes, most: int) -> None:
    """Raise InvalidRequestError for valid JSON that is nested deeper than `most` levels."""
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
