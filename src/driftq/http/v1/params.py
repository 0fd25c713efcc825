"""Reads the parameters of a request (http-v1 §1.1): from its body or from its query, never from both.

JSON is strict: one object, no unknown field at any depth, numbers of the right kind. `null` counts as absent, the last
of repeated keys wins, and an unpaired surrogate becomes U+FFFD. A query is lenient: unknown names are ignored.
"""

import re
from collections.abc import Mapping
from typing import Annotated, TypeVar
from urllib.parse import parse_qsl

from msgspec import Meta, MsgspecError
from msgspec.json import Decoder

from driftq.errors import InvalidRequestError, PayloadTooLargeError
from driftq.http.request import Request
from driftq.model.names import broker_topic


def may_name(request: Request, topic: str) -> bool:
    """Whether the key may use this topic."""
    access = request.access
    return not access.prefixes or access.may_name(broker_topic(topic))


def check_name(request: Request, topic: str) -> None:
    """Raise ForbiddenError if the key may not use this topic."""
    access = request.access
    if access.prefixes:
        access.check_name(broker_topic(topic))


T = TypeVar("T")

I32_MAX, I64_MAX = (1 << 31) - 1, (1 << 63) - 1
I32 = Annotated[int, Meta(ge=-I32_MAX - 1, le=I32_MAX)]
I64 = Annotated[int, Meta(ge=-I64_MAX - 1, le=I64_MAX)]

Query = Mapping[str, str]

_SPACE = "".join(filter(str.isspace, map(chr, range(0x3001)))).translate(dict.fromkeys(range(0x1C, 0x20)))
"""White space as Unicode defines it; Python's `isspace` also includes four control characters."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_INTEGER = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)


def stripped(name: str | None) -> str:
    """Return a name without white space around it; None becomes the empty string."""
    return "" if name is None else name.strip(_SPACE)


def body_of(decoder: Decoder[T], request: Request, body_bytes_max: int) -> T | None:
    """Return the decoded body, or None if there is no body and the query counts."""
    if request.oversized or len(request.body) > body_bytes_max:
        raise PayloadTooLargeError("the body is too large")
    if request.fault is not None:
        raise request.fault
    return decode(decoder, request.body) if request.body else None


def only_body(decoder: Decoder[T], request: Request, body_bytes_max: int) -> T:
    """Return the decoded body, for calls that take no query; an empty body is an error."""
    found = body_of(decoder, request, body_bytes_max)
    return decode(decoder, b"") if found is None else found


def decode(decoder: Decoder[T], body: bytes) -> T:
    """Return the value of strict JSON. Raise InvalidRequestError if it is invalid."""
    if b"\\u" in body and _SURROGATE.search(body) is not None:
        body = _ESCAPE.sub(_paired, body)
    try:
        return decoder.decode(body)
    except (MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_json(error) from None


def invalid_json(why: object) -> InvalidRequestError:
    """Return the error for an invalid body; all reasons share this text."""
    return InvalidRequestError(f"invalid json body: {why}")


def _paired(match: re.Match[bytes]) -> bytes:
    return match[0] if match[1] is None else b"\\ufffd"


def query_of(request: Request) -> Query:
    """Return the arguments of the query; of a repeated name, the first."""
    text = request.query.encode("latin-1").decode("utf-8", "replace")
    return dict(reversed(parse_qsl(text, keep_blank_values=True, errors="replace")))


def whole_number(query: Query, name: str, least: int, most: int) -> int | None:
    """Return an integer of a query, or None if it is absent or blank. Raise InvalidRequestError if it is invalid."""
    text = query.get(name)
    if text is None or not stripped(text):
        return None
    value = int(text) if _INTEGER.fullmatch(text) else None
    if value is None or not least <= value <= most:
        raise InvalidRequestError(f"invalid {name}")
    return value
