"""gzip, both ways (http-v0 §1.2).

Invariants
- A body is unpacked to no more bytes than a body may have; what would be longer counts as oversized, and is not kept.
- What would hold up the loop is done by a thread: the answer is then a `Pending`.
- What is wrong with a body's coding is noted in the request and told by whoever wants the body: a request for nothing
  is still a `404`.
"""

import zlib
from collections.abc import Callable

from driftq.errors import InvalidRequestError, UnsupportedMediaTypeError
from driftq.http.reply import JSON, Reply
from driftq.http.request import Headers, Request
from driftq.system.runtime import Pending, Runtime, SerialWorker

PACKED_MIN = 1024
"""Less is not worth it."""
INLINE_MAX = 256 << 10
"""So many plain bytes are packed or unpacked on the loop: two or three milliseconds."""

_GZIP = 31
"""zlib's name for the format."""
_LEVEL = 1
_CODINGS = (b"gzip", b"x-gzip")
_PACKED_HEADERS = ((b"content-encoding", b"gzip"), (b"vary", b"accept-encoding"))


class Packing:
    """The thread that packs what is large. It is started when it is first needed."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._worker: SerialWorker[Callable[[], None]] | None = None

    def unpack(self, request: Request, body_bytes_max: int) -> Pending[None] | None:
        """Replace the body by what it means. Where that takes long, the answer says when it is done."""
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
        """The reply as its caller takes it: packed if it may be and is worth it."""
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
        """End the thread."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _unpack(self, request: Request, body: bytes, most: int, *, last: bool) -> bool:
        """Whether that was all there is to do: it was not if the body became too long and this is not the last try."""
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
    """Does `Accept-Encoding` list it, and not with a weight of nothing?"""
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
    """The same reply in gzip."""
    press = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    parts = [press.compress(part) for part in (reply.body, *reply.more)]
    parts.append(press.flush())
    return Reply(reply.status, b"".join(parts), reply.content_type, reply.headers + _PACKED_HEADERS)


def unpacked(body: bytes, most: int) -> bytes | None:
    """What a gzip body means; None if that is longer than it may be. Raises InvalidRequestError."""
    parts: list[bytes] = []
    size = 0
    while body:
        press = zlib.decompressobj(_GZIP)
        try:
            part = press.decompress(body, most - size + 1)
        except zlib.error as error:
            raise InvalidRequestError("the body is not gzip") from error
        size += len(part)
        if size > most:
            return None
        if not press.eof:
            raise InvalidRequestError("the gzip body is cut short")
        parts.append(part)
        # A file of gzip may have several members; what is behind the last one must be another.
        body = press.unused_data
    return b"".join(parts)
