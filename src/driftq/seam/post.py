"""One HTTP/1.1 POST of JSON, on connections that are kept: what a webhook needs, and no more.

    http://host[:port]/path    https likewise, with the system's certificates

A kept connection that the other side has closed meanwhile is noticed before anything is sent, or the call fails: a POST
is never sent twice. A reply is read to its end, up to a limit.
"""

import asyncio
import ssl
from typing import NamedTuple
from urllib.parse import urlsplit

_REPLY_BYTES_MAX = 1 << 20
_KEPT_MAX = 8
_HEAD_BYTES_MAX = 64 << 10


class PostError(Exception):
    """The other side could not be asked, or its answer not understood."""


class Reply(NamedTuple):
    """What came back."""

    status: int
    body: bytes


class _Head(NamedTuple):
    status: int
    length: int | None
    chunked: bool
    keep: bool


class Poster:
    """POSTs to one address. Raises ValueError where it is none."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http or https address")
        self._host = parts.hostname
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._head = (
            f"POST {path} HTTP/1.1\r\nhost: {parts.netloc.rpartition('@')[2]}\r\n"
            "content-type: application/json\r\naccept: application/json\r\ncontent-length: "
        ).encode("ascii")
        self._kept: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def post(self, body: bytes) -> Reply:
        """Ask once. Raises PostError."""
        try:
            reader, writer = await self._connection()
        except OSError as error:
            raise PostError(f"{self._host} port {self._port} cannot be reached: {error}") from error
        keep = False
        try:
            writer.write(self._head + b"%d\r\n\r\n" % len(body) + body)
            await writer.drain()
            head = _head_of(await reader.readuntil(b"\r\n\r\n"))
            reply = Reply(head.status, await _body(reader, head))
            keep = head.keep and (head.chunked or head.length is not None)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise PostError(f"the answer of {self._host} port {self._port} broke off: {error}") from error
        else:
            return reply
        finally:
            if keep and len(self._kept) < _KEPT_MAX:
                self._kept.append((reader, writer))
            else:
                writer.close()

    def close(self) -> None:
        """Keep no connection any more. To be called on the event loop that they belong to."""
        for _, writer in self._kept:
            writer.close()
        self._kept.clear()

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._kept:
            reader, writer = self._kept.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=_HEAD_BYTES_MAX)


def _head_of(raw: bytes) -> _Head:
    lines = raw.decode("latin-1").split("\r\n")
    version, _, rest = lines[0].partition(" ")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    status = int(rest[:3])
    length = 0 if status in (204, 304) else int(fields["content-length"]) if "content-length" in fields else None
    if length is not None and not 0 <= length <= _REPLY_BYTES_MAX:
        raise ValueError(f"a reply of {length} bytes")
    chunked = "chunked" in fields.get("transfer-encoding", "").lower()
    keep = version == "HTTP/1.1" and "close" not in fields.get("connection", "").lower()
    return _Head(status, length, chunked, keep)


async def _body(reader: asyncio.StreamReader, head: _Head) -> bytes:
    if head.chunked:
        return await _chunks(reader)
    if head.length is not None:
        return await reader.readexactly(head.length)
    body = await reader.read(_REPLY_BYTES_MAX + 1)
    while (more := await reader.read(_REPLY_BYTES_MAX)) and len(body) <= _REPLY_BYTES_MAX:
        body += more
    if len(body) > _REPLY_BYTES_MAX:
        raise ValueError("a reply that is too long")
    return body


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        if size < 0 or len(body) + size > _REPLY_BYTES_MAX:
            raise ValueError("a reply that is too long")
        body += (await reader.readexactly(size + 2))[:-2]
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return body
