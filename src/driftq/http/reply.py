"""A reply, and the encoding of its head for HTTP/1."""

from collections.abc import Sequence
from http import HTTPStatus

from msgspec import Struct, json

from driftq.http.request_id import PROCESS

JSON = b"application/json"


class Reply(Struct, frozen=True):
    """A status, a body and additional headers."""

    status: int
    body: bytes = b""
    content_type: bytes = JSON
    """Empty: the reply has neither a body nor headers about one."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    more: Sequence[bytes] = ()
    """Further pieces of the body, so that a large page is sent without being copied into one buffer."""
    plain: bool = False
    """Whether it must not be compressed."""

    @property
    def size(self) -> int:
        """Return the length of the whole body in bytes."""
        return len(self.body) + sum(map(len, self.more)) if self.more else len(self.body)

    @property
    def whole(self) -> bytes:
        """Return the whole body as one piece."""
        return b"".join((self.body, *self.more)) if self.more else self.body


def json_reply(status: int, value: object, *headers: tuple[bytes, bytes]) -> Reply:
    """Return a reply with `value` encoded as its JSON body."""
    return Reply(status, json.encode(value), headers=headers)


STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus}
_JSON_HEADS = {
    status: line + b"content-type: application/json\r\nx-request-id: " for status, line in STATUS_LINES.items()
}

OK_JSON = _JSON_HEADS[200] + PROCESS
"""The head of a `200` with JSON, up to the counting part of the request id."""


def encode_head(reply: Reply, size: int, *, request_id: bytes, keep_alive: bool, old: bool) -> bytes:
    """Return the head of a reply. A client of HTTP/1.0 (`old`) needs a header if the connection stays open."""
    if keep_alive and not old and not reply.headers and reply.content_type is JSON:
        return b"%b%b\r\ncontent-length: %d\r\n\r\n" % (_JSON_HEADS[reply.status], request_id, size)
    parts = [STATUS_LINES[reply.status], b"x-request-id: %b\r\n" % request_id]
    if reply.content_type:
        parts.append(b"content-type: %b\r\ncontent-length: %d\r\n" % (reply.content_type, size))
    parts += [b"%b: %b\r\n" % header for header in reply.headers]
    if not keep_alive:
        parts.append(b"connection: close\r\n")
    elif old:
        parts.append(b"connection: keep-alive\r\n")
    parts.append(b"\r\n")
    return b"".join(parts)
