"""Decodes request bodies: checks the media type, then the JSON, then the types (http-v0 §1.2, §1.3)."""

from typing import Annotated, TypeVar

from msgspec import Meta
from msgspec.json import Decoder

from driftq.codec import json_text
from driftq.errors import InvalidRequestError, PayloadTooLargeError, UnsupportedMediaTypeError
from driftq.http.request import Request
from driftq.model.limits import NESTING_MAX, U64_MAX
from driftq.model.units import NS_PER_MS

T = TypeVar("T")

U32 = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
U64 = Annotated[int, Meta(ge=0)]
"""The decoder checks only the lower bound of a u64; `check_u64` checks the upper bound."""

JSON = b"application/json"
ARROW = b"application/vnd.apache.arrow.stream"


def json_body(request: Request, *, body_bytes_max: int, optional: bool = False) -> bytes:
    """Return the bytes of a JSON body in compact form. With `optional`, an empty body counts as `{}`."""
    check_size(request, body_bytes_max)
    if optional and not request.body:
        return b"{}"
    check_media_type(request, JSON)
    return json_text.compact(request.body)


def check_size(request: Request, body_bytes_max: int) -> None:
    """Raise PayloadTooLargeError if the body is too long, or the error with which its decompression failed."""
    if request.oversized or len(request.body) > body_bytes_max:
        raise PayloadTooLargeError(f"the body is longer than {body_bytes_max} bytes", detail={"max": body_bytes_max})
    if request.fault is not None:
        raise request.fault


def check_media_type(request: Request, wanted: bytes) -> None:
    """Raise UnsupportedMediaTypeError unless the content type, without its parameters, is `wanted`."""
    if not has_media_type(request, wanted):
        raise UnsupportedMediaTypeError(f"the content type must be {wanted.decode()}")


def has_media_type(request: Request, wanted: bytes) -> bool:
    """Whether the content type, without its parameters, is `wanted`."""
    found = request.header(b"content-type")
    return found == wanted or (found is not None and found.lstrip().startswith(wanted))


def decode_body(decoder: Decoder[T], request: Request, *, body_bytes_max: int, optional: bool = False) -> T:
    """Return the value of a JSON body. Checks every rule of §1.3 except the upper bound of u64 fields."""
    body = json_body(request, body_bytes_max=body_bytes_max, optional=optional)
    value = json_text.parse(decoder, body)
    json_text.check_depth(body, NESTING_MAX)
    return value


def check_u64(value: int | None, field: str) -> None:
    """Raise InvalidRequestError if the value is larger than a u64."""
    if value is not None and value > U64_MAX:
        raise InvalidRequestError(f"{field} is larger than a 64-bit unsigned integer")


_LEAST_MS = 0.001


def since_ms(began_ns: int, now_ns: int) -> float:
    """Return the milliseconds between two times in ns, rounded to 1 µs."""
    return round((now_ns - began_ns) / NS_PER_MS, 3)


def shown_sync_ms(sync_ns: int) -> float:
    """Return the sync time that a write reports, in ms: 0 if there was no sync, else at least 0.001."""
    return max(_LEAST_MS, round(sync_ns / NS_PER_MS, 3)) if sync_ns else 0.0
