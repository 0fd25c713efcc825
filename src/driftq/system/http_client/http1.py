"""The client's side of one HTTP/1.1 connection, without I/O: requests as bytes, and responses from bytes.

A connection carries one exchange at a time. The states of a `ResponseReader`:

    idle → head → body → complete → idle (the next request on the same connection)
                   ├──→ until the end of the connection, if the response has no length
                   └──→ large → complete, if the caller receives bytes directly into the memory of the body (`room`)

Invariants
- Interim responses (1xx) are skipped; `101 Switching Protocols` is an error, because no request asks for it.
- A connection may carry another request only if the response was complete, had a length, did not ask to close, and
  nothing came after it. Otherwise one answer could be mistaken for another.
- A head is at most 64 KiB, and at most 256 MiB of a body wait to be taken. A response that ends early, or breaks a rule
  of HTTP, is an `HttpError`, not a short answer.
- A response that comes in one piece, with the head that a DriftQ server gives a success, is read by one regular
  expression. It matches nothing that the parser would read in another way; everything else goes to the parser.
- A body of 4 MiB or more whose length is known is received directly into its final memory. Bytes after it are not read
  with it, so they are still in the connection, which is then not used again (`is_alive` of the connections). The
  parser, which has not seen the end of that body, is not used again either.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from driftq.system.http_client.body_room import body_room
from driftq.system.http_client.request_body import Body

if TYPE_CHECKING:
    import ssl

HEAD_BYTES_MAX = 64 << 10
LARGE_BYTES_MIN = 4 << 20
"""Bodies from this size on are received directly into their final memory."""
BODY_BYTES_MAX = 256 << 20
"""Limit of the bytes of a body that wait to be taken. The largest page of a server has 64 MiB of records."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(r"[!-~]+")
_FIELD_VALUE = re.compile(r"[\t -~\x80-\xff]*")
_PATH_SAFE = "/%:@!$&'()*+,;=~?-._>"
_OF_THE_BODY = frozenset(("content-length", "transfer-encoding"))
_HEADS_KEPT_MAX = 512
_PLAIN = re.compile(
    rb"HTTP/1\.1 200 OK\r\ncontent-type: ([!-~]+)\r\n"
    rb"(?:x-request-id: ([!-~]+)\r\ncontent-length: ([0-9]{1,15})"
    rb"|content-length: ([0-9]{1,15})\r\nx-request-id: ([!-~]+))\r\n\r\n"
)
"""The head of nearly all answers: a success with a length, on a connection that stays open. Servers use both orders."""


class HttpError(Exception):
    """An exchange without a complete response. `sent` is False if the server cannot have seen the request."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class BodyTooLongError(HttpError):
    """The body of the response is longer than a client accepts."""


class Endpoint(NamedTuple):
    """The address of a server and how to reach it: by TCP, by a Unix socket, or through an HTTP proxy."""

    host: str
    port: int
    tls: "ssl.SSLContext | None" = None
    unix_path: str | None = None
    proxy: "Proxy | None" = None

    def __repr__(self) -> str:
        return f"Endpoint({self.name})"

    @property
    def name(self) -> str:
        """Return the name of the server for messages."""
        return self.unix_path or f"{self.host} port {self.port}"

    @property
    def dialled(self) -> tuple[str, int]:
        """Return the host and port that a TCP connection goes to."""
        return (self.host, self.port) if self.proxy is None else (self.proxy.host, self.proxy.port)

    def tunnel(self) -> bytes | None:
        """Return the request that makes a proxy connect to the server, or None if it is not needed."""
        if self.proxy is None or self.tls is None:
            return None
        place = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return f"CONNECT {place} HTTP/1.1\r\nhost: {place}\r\n{_fields(tuple(self.proxy.headers.items()))}\r\n".encode(
            "latin-1"
        )


class Proxy(NamedTuple):
    """A proxy, and the headers to send to it."""

    host: str
    port: int
    headers: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Proxy({self.host} port {self.port})"


class RequestHead:
    """Makes the heads of requests to one server. Raises ValueError for a header that cannot be sent."""

    def __init__(self, host: str, headers: Mapping[str, str], prefix: str = "") -> None:
        self._prefix = prefix
        self._fixed = _fields((("host", host), *headers.items()))
        self._known: dict[tuple[object, ...], bytes] = {}
        """Heads without the lines about the body, by the values that they are made of."""

    def request(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes | Body | None
    ) -> bytes:
        """Return the head of a request, up to and including its empty line. Raises ValueError."""
        made_of = (method, path, len(query), *query.items(), *headers.items())
        begin = self._known.get(made_of)
        if begin is None:
            begin = self._begin(method, path, query, headers)
            if len(self._known) >= _HEADS_KEPT_MAX:
                self._known.clear()
            self._known[made_of] = begin
        if body is None:
            return begin + (b"content-length: 0\r\n\r\n" if method in ("POST", "PUT", "PATCH") else b"\r\n")
        length = body.length if isinstance(body, Body) else len(body)
        if length is None:
            return begin + b"transfer-encoding: chunked\r\n\r\n"
        return b"%bcontent-length: %d\r\n\r\n" % (begin, length)

    def _begin(self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> bytes:
        if not _TOKEN.fullmatch(method):
            raise ValueError(f"{method!r} is not an HTTP method")
        target = self._prefix + (path if _TARGET.fullmatch(path) else quote(path, safe=_PATH_SAFE))
        for name in headers:
            if name.lower() in _OF_THE_BODY:
                raise ValueError(f"the HTTP header {name!r} cannot be set: it is derived from the body")
        if query:
            target += ("&" if "?" in target else "?") + urlencode(query, quote_via=quote)
        return f"{method} {target} HTTP/1.1\r\n{self._fixed}{_fields(tuple(headers.items()))}".encode("latin-1")


def _fields(headers: tuple[tuple[str, str], ...]) -> str:
    for name, value in headers:
        if not _TOKEN.fullmatch(name) or not _FIELD_VALUE.fullmatch(value):
            raise ValueError(f"the header {name[:100]!r} has a character that HTTP does not allow there")
    return "".join([f"{name}: {value}\r\n" for name, value in headers])


class ResponseReader:
    """Reads the responses of one connection, one after the other."""

    __slots__ = (
        "_body",
        "_head_bytes",
        "_is_head",
        "_keep_alive",
        "_large",
        "_length_known",
        "_parser",
        "_received",
        "_surplus",
        "_untouched",
        "buffered",
        "complete",
        "continued",
        "head_complete",
        "headers",
        "status",
    )

    def __init__(self) -> None:
        self._parser: Any = HttpResponseParser(self)
        self.expect("GET")

    def expect(self, method: str) -> None:
        """Prepare for the response to a new request. A response to CONNECT has no body, like one to HEAD."""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.head_complete = False
        """Whether `status` and `headers` are those of the response."""
        self.complete = False
        self.continued = False
        """Whether the server has asked for the body (`100 Continue`)."""
        self._untouched = True
        self._is_head = method in ("HEAD", "CONNECT")
        self._body: list[bytes] = []
        self.buffered = 0
        """Number of bytes of the body that wait to be taken."""
        self._large: memoryview | None = None
        self._received = 0
        """Number of received bytes of a large body."""
        self._head_bytes = 0
        self._length_known = False
        self._surplus = False
        self._keep_alive = False

    def feed(self, data: bytes) -> None:
        """Process bytes from the connection. Raises HttpError for bytes that are not a response."""
        if self._untouched:
            self._untouched = False
            if not self._is_head and self._feed_whole(data):
                return
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if not self.complete or isinstance(error, HttpParserUpgrade):
                raise HttpError(
                    f"the server sent something that is not an HTTP response: {error}", sent=True
                ) from error
            self._surplus = True
        if not self.head_complete:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                raise HttpError(f"the head of the response is longer than {HEAD_BYTES_MAX} bytes", sent=True)
        if self.buffered > BODY_BYTES_MAX:
            raise BodyTooLongError(f"the body of the response is longer than {BODY_BYTES_MAX} bytes", sent=True)

    def _feed_whole(self, data: bytes) -> bool:
        """Process a complete response with the usual head. Returns False, and changes nothing, for any other."""
        head = _PLAIN.match(data)
        if head is None:
            return False
        begin = head.end()
        kind, request_id, length, length_first, id_last = head.groups()
        if length is None:
            request_id, length = id_last, length_first
        if len(data) - begin != int(length):
            return False
        self.status = 200
        self.headers = {
            "content-type": kind.decode("ascii"),
            "x-request-id": request_id.decode("ascii"),
            "content-length": length.decode("ascii"),
        }
        self._body = [data[begin:]]
        self.buffered = len(data) - begin
        self.head_complete = self.complete = self._length_known = self._keep_alive = True
        return True

    def room(self) -> memoryview | None:
        """Return the memory for the rest of a large body, if the caller wants all of it; None if `feed` must take it.

        A caller that has put bytes there calls `received`, and feeds nothing more of this response.
        """
        if not self.head_complete or self.complete:
            return None
        if self._large is None:
            length = self._large_length()
            if not length:
                return None
            self._large = body_room(length)
            for part in self._body:
                self._large[self._received : self._received + len(part)] = part
                self._received += len(part)
            self._body = []
            self.buffered = 0
        return self._large[self._received :]

    def _large_length(self) -> int:
        """Return the length of the body if it is large, known and incomplete, else 0."""
        length = self.headers.get("content-length", "")
        if not length.isdecimal() or len(length) > len(str(BODY_BYTES_MAX)):
            return 0
        size = int(length)
        if not LARGE_BYTES_MIN <= size <= BODY_BYTES_MAX or "transfer-encoding" in self.headers:
            return 0
        return size if self.buffered < size else 0

    def received(self, size: int) -> None:
        """Note that `size` bytes, at least one, were put into `room`."""
        assert self._large is not None, "room() was called"
        self._received += size
        if self._received == len(self._large):
            self.complete = True
            self._keep_alive = bool(self._parser.should_keep_alive())
            self._parser = HttpResponseParser(self)

    def end(self) -> None:
        """Note that the connection has ended. Raises HttpError if a part of the response is missing."""
        if self.complete:
            return
        if not self.head_complete:
            raise HttpError("the server closed the connection before it answered", sent=True)
        if self._length_known:
            raise HttpError("the server closed the connection in the middle of its answer", sent=True)
        self.complete = True
        self._surplus = True

    def take(self) -> bytes | memoryview:
        """Return the part of the body that has come since the last call; a view if `room` was used."""
        if self._large is not None:
            large, self._large = self._large, None
            return large
        parts = self._body
        if not parts:
            return b""
        self._body = []
        self.buffered = 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def reusable(self) -> bool:
        """Whether the connection may carry another request: the response was complete, and all of it was taken."""
        return (
            self.complete
            and self._keep_alive
            and self._length_known
            and not self._surplus
            and not self._is_head
            and not self._body
            and self._large is None
        )

    # Called by the parser

    def on_message_begin(self) -> None:
        """Note a second response to one request: the connection is then not used again."""
        if self.complete:
            self._surplus = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header of the head; headers of a trailer are dropped."""
        if self.head_complete:
            return
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        """Store the status, and decide whether the response has a body."""
        if self._surplus:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self.continued = self.continued or status == 100
            self.headers = {}
            return
        self.status = status
        self._length_known = (
            status in (204, 304)
            or "content-length" in self.headers
            or "chunked" in self.headers.get("transfer-encoding", "").lower()
        )
        self.head_complete = True
        if self._is_head:
            self.complete = True

    def on_body(self, body: bytes) -> None:
        """Store a part of the body."""
        if not self._surplus and not self._is_head:
            self._body.append(body)
            self.buffered += len(body)

    def on_message_complete(self) -> None:
        """End the response, unless it was an interim one."""
        if self.head_complete and not self.complete:
            self.complete = True
            self._keep_alive = bool(self._parser.should_keep_alive())
