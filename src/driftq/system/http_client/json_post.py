"""One HTTP/1.1 POST of JSON, on connections that are reused: what a webhook needs, and no more.

    http://host[:port]/path    https likewise, with the system's certificates

A POST is never sent twice: if a connection breaks, the call fails. A reply is read to its end, up to 1 MiB.
"""

import asyncio
from typing import NamedTuple
from urllib.parse import urlsplit

from driftq.system.http_client.http1 import Endpoint, HttpError, RequestHead
from driftq.system.http_client.http_async import AsyncConnection, AsyncPool

_REPLY_BYTES_MAX = 1 << 20
_WAIT_S_MAX = 300.0
"""How long a reply may take, in seconds; callers have a shorter limit of their own."""
_JSON = {"content-type": "application/json", "accept": "application/json"}


class PostError(Exception):
    """The server could not be reached, or its answer was not complete."""


class PostReply(NamedTuple):
    """Status and body of the answer."""

    status: int
    body: bytes


class Poster:
    """Sends POST requests to one address. Raises ValueError for a text that is not an address."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http or https address")
        tls = None
        if parts.scheme == "https":
            import ssl

            tls = ssl.create_default_context()
        self._name = f"{parts.hostname} port {parts.port or (443 if tls else 80)}"
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._head = RequestHead(parts.netloc.rpartition("@")[2], _JSON)
        self._pool = AsyncPool(Endpoint(parts.hostname, parts.port or (443 if tls else 80), tls))

    async def post(self, body: bytes) -> PostReply:
        """Send one request and return its answer. Raises PostError."""
        deadline = asyncio.get_running_loop().time() + _WAIT_S_MAX
        try:
            connection = self._pool.take()
        except HttpError as error:
            raise PostError(str(error)) from error
        try:
            head = self._head.request("POST", self._path, {}, {}, body)
            status, _ = await connection.begin("POST", head, body, deadline)
            return PostReply(status, await _body(connection, deadline))
        except HttpError as error:
            if not error.sent:
                raise PostError(str(error)) from error
            raise PostError(f"the answer of {self._name} is incomplete: {error}") from error
        finally:
            self._pool.give_back(connection)

    def close(self) -> None:
        """Close all connections. To be called on the event loop that they belong to."""
        self._pool.close()


async def _body(connection: AsyncConnection, deadline: float) -> bytes:
    body = b""
    while chunk := await connection.pull(deadline):
        body += chunk
        if len(body) > _REPLY_BYTES_MAX:
            raise HttpError(f"its body is longer than {_REPLY_BYTES_MAX} bytes", sent=True)
    return body
