"""The body of a request as a value: media type, then JSON, then types (http-v0 §1.2, §1.3)."""

from typing import Annotated, TypeVar

from msgspec import Meta
from msgspec.json import Decoder

from driftq.codec import json_text
from driftq.errors import InvalidRequestError, PayloadTooLargeError, UnsupportedMediaTypeError
from driftq.http.request import Request
from driftq.model.limits import NESTING_MAX, U64_MAX

T = TypeVar("T")

U32 = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
U64 = Annotated[int, Meta(ge=0)]
"""What the decoder can check of one; `check_u64` does the rest."""

JSON = b"application/json"
ARROW = b"application/vnd.apache.arrow.stream"


def json_body(request: Request, *, body_bytes_max: int, optional: bool = False) -> bytes:
    """The bytes of a JSON body, compact. Where it is optional an empty one stands for `{}`."""
    check_size(request, body_bytes_max)
    if optional and not request.body:
        return b"{}"
    check_media_type(request, JSON)
    return json_text.compact(request.body)


def check_size(request: Request, body_bytes_max: int) -> None:
    """Refuse a body that is longer, and one that could not be unpacked."""
    if request.oversized or len(request.body) > body_bytes_max:
        raise PayloadTooLargeError(f"the body is longer than {body_bytes_max} bytes", detail={"max": body_bytes_max})
    if request.fault is not None:
        raise request.fault


def check_media_type(request: Request, wanted: bytes) -> None:
    """Refuse another content type than this, parameters aside."""
    if not has_media_type(request, wanted):
        raise UnsupportedMediaTypeError(f"the content type must be {wanted.decode()}")


def has_media_type(request: Request, wanted: bytes) -> bool:
    """Is the content type this one, parameters aside?"""
    found = request.header(b"content-type")
    return found == wanted or (found is not None and found.lstrip().startswith(wanted))


def decode_body(decoder: Decoder[T], request: Request, *, body_bytes_max: int, optional: bool = False) -> T:
    """The value of a JSON body, every rule of §1.3 kept but the range of a u64."""
    body = json_body(request, body_bytes_max=body_bytes_max, optional=optional)
    value = json_text.parse(decoder, body)
    json_text.check_depth(body, NESTING_MAX)
    return value


def check_u64(value: int | None, field: str) -> None:
    """Refuse what is larger than a u64."""
    if value is not None and value > U64_MAX:
        raise InvalidRequestError(f"{field} is larger than a 64-bit unsigned integer")


_NS_PER_MS = 1_000_000
_LEAST_MS = 0.001


def since_ms(began_ns: int, now_ns: int) -> float:
    """Milliseconds, to the microsecond."""
    return round((now_ns - began_ns) / _NS_PER_MS, 3)


def shown_sync_ms(sync_ns: int) -> float:
    """A sync as a write shows it: exactly nothing where there was none, and more than nothing where there was one."""
    return max(_LEAST_MS, round(sync_ns / _NS_PER_MS, 3)) if sync_ns else 0.0
