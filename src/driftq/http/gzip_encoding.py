"""Compresses replies and decompresses request bodies with gzip (http-v0 §1.2).

Invariants
- A body is never decompressed beyond the body limit: a longer one is marked oversized and dropped.
- Work that would block the loop for long runs on a thread, and the result is a `Pending`.
- An error in a body's encoding is stored in the request, and is raised when a handler reads the body. So a request for
  an unknown path still gets a `404`.
"""

import zlib
from collections.abc import Callable

from driftq.errors import InvalidRequestError, UnsupportedMediaTypeError
from driftq.http.reply import JSON, Reply
from driftq.http.request import Headers, Request
from driftq.system.runtime import Pending, Runtime, SerialWorker

PACKED_MIN = 1024
"""Replies with fewer bytes are not compressed."""
INLINE_MAX = 256 << 10
"""Up to this many uncompressed bytes are processed on the loop, which takes 2 to 3 ms."""

_GZIP = 31
"""The value of zlib's `wbits` that selects the gzip format."""
_LEVEL = 1
_CODINGS = (b"gzip", b"x-gzip")
_PACKED_HEADERS = ((b"content-encoding", b"gzip"), (b"vary", b"accept-encoding"))


class Packing:
    """Compresses and decompresses bodies; large ones on a thread, which starts when it is first needed."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._worker: SerialWorker[Callable[[], None]] | None = None

    def unpack(self, request: Request, body_bytes_max: int) -> Pending[None] | None:
        """Replace the body by its decompressed bytes. Returns a `Pending` if that happens on the thread, else None."""
        coding = (request.header(b"content-encoding") or b"").strip().lower()
        if coding in (b"", b"identity"):
            return None
        if coding not in _CODINGS:
            request.fault = UnsupportedMediaTypeError("the content encoding must be gzip or identity")
            return None
        body = request.body
        small = min(body_bytes_max, INLINE_MAX)
        if len(body) <= small and self._unpack(request, body, small, last=small == body_bytes_max):
            return None
        done: Pending[None] = Pending()

        def job() -> None:
            self._unpack(request, body, body_bytes_max, last=True)
            self._runtime.from_thread(lambda: done.resolve(None))

        self._put(job)
        return done

    def pack(self, request: Request, reply: Reply) -> Reply | Pending[Reply]:
        """Return the reply, compressed if the caller accepts gzip and it is text of at least `PACKED_MIN` bytes."""
        size = reply.size
        if size < PACKED_MIN or not _packs(reply) or not takes_gzip(request.headers):
            return reply
        if size <= INLINE_MAX:
            return packed(reply)
        done: Pending[Reply] = Pending()

        def job() -> None:
            found = packed(reply)
            self._runtime.from_thread(lambda: done.resolve(found))

        self._put(job)
        return done

    def close(self) -> None:
        """Stop the thread if it was started."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _unpack(self, request: Request, body: bytes, most: int, *, last: bool) -> bool:
        """Decompress a body into the request. Returns False if it exceeds `most` bytes and this is not the last try."""
        try:
            plain = unpacked(body, most)
        except InvalidRequestError as error:
            request.body, request.fault = b"", error
            return True
        if plain is None and not last:
            return False
        request.body = plain or b""
        request.oversized = plain is None
        return True

    def _put(self, job: Callable[[], None]) -> None:
        if self._worker is None:
            self._worker = self._runtime.worker("gzip", _run)
        self._worker.put(job)


def _run(jobs: list[Callable[[], None]]) -> None:
    for job in jobs:
        job()


def takes_gzip(headers: Headers) -> bool:
    """Whether `Accept-Encoding` lists gzip with a weight other than 0."""
    for name, value in headers:
        if name == b"accept-encoding" and b"gzip" in (lower := value.lower()):
            for item in lower.split(b","):
                coding, _, weight = item.partition(b";")
                if coding.strip() in _CODINGS:
                    return bool(weight.strip().removeprefix(b"q=").strip(b"0.") or not weight.strip())
    return False


def _packs(reply: Reply) -> bool:
    text = reply.content_type is JSON or reply.content_type.startswith((b"application/json", b"text/"))
    return text and not reply.plain and not any(name == b"content-encoding" for name, _ in reply.headers)


def packed(reply: Reply) -> Reply:
    """Return the reply compressed with gzip."""
    press = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    parts = [press.compress(part) for part in (reply.body, *reply.more)]
    parts.append(press.flush())
    return Reply(reply.status, b"".join(parts), reply.content_type, reply.headers + _PACKED_HEADERS)


def unpacked(body: bytes, most: int) -> bytes | None:
    """Return a gzip body decompressed, or None above `most` bytes. Raise InvalidRequestError if it is damaged."""
    parts: list[bytes] = []
    size = 0
    while body:
        press = zlib.decompressobj(_GZIP)
        try:
            part = press.decompress(body, most - size + 1)
        except zlib.error as error:
            raise InvalidRequestError("the body is not valid gzip") from error
        size += len(part)
        if size > most:
            return None
        if not press.eof:
            raise InvalidRequestError("the gzip body is incomplete")
        parts.append(part)
        # A gzip body may have several members; bytes after the last member must be another member.
        body = press.unused_data
    return b"".join(parts)
