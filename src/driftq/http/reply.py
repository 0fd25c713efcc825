"""One answer, and its bytes: head and body together, so that they leave in one write."""

from http import HTTPStatus

from msgspec import Struct, json

JSON = b"application/json"


class Reply(Struct, frozen=True):
    """A status, a body, and what is unusual about the head."""

    status: int
    body: bytes = b""
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


def json_reply(status: int, value: object, *headers: tuple[bytes, bytes]) -> Reply:
    """A reply whose body is JSON."""
    return Reply(status, json.encode(value), headers=headers)


_STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus}


def encode_reply(reply: Reply, *, keep_alive: bool, old: bool, with_body: bool) -> bytes:
    """The bytes of a reply. `old` is a client of HTTP/1.0, which must be told that the connection stays."""
    parts = [
        _STATUS_LINES[reply.status],
        b"content-type: %b\r\ncontent-length: %d\r\n" % (reply.content_type, len(reply.body)),
    ]
    parts += [b"%b: %b\r\n" % header for header in reply.headers]
    if not keep_alive:
        parts.append(b"connection: close\r\n")
    elif old:
        parts.append(b"connection: keep-alive\r\n")
    parts.append(b"\r\n")
    if with_body:
        parts.append(reply.body)
    return b"".join(parts)
