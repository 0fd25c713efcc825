"""The short write path: a faster path for ordinary writes whose head was seen before (decision 27).

The long path builds a request, a promise and a reply for every write and passes through about thirty functions. Most
writes of a busy producer differ only in their bodies. For those, `ShortWrites.shortcut` does the work that depends on
the head once per head, and returns a function that takes bodies (`http/answer`).

Rule: the short path either answers exactly as the long path would, apart from `performance`, or declines before it has
changed anything; then the request takes the long path. It declines

- bodies with fields other than records, `create` and an idempotency key, and bodies with any error;
- records with a node or a meta, and single records with escapes;
- a topic that is absent, held or not loaded yet, a server that is closing, and every refusal (full, throttled, …);
- a key that was used before, or that an unfinished write uses: the long path knows the answer.

It is off on a server with API keys and with an access log, and when `short_writes` is off (`http.app:App.shortcut`).
"""

from msgspec import Struct
from msgspec.structs import replace

from driftq.codec.write_body import decode_plain
from driftq.engine.write.appender import FrameCommitted
from driftq.errors import DriftQError
from driftq.http.answer import Replies, ReplySlot, Shortcut
from driftq.http.gzip_encoding import PACKED_MIN, takes_gzip
from driftq.http.metrics.request_log import NEVER_NS
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.v0.bodies import JSON, shown_sync_ms
from driftq.http.v0.errors import failed_reply
from driftq.http.v0.records.record_bodies import MIDDLE, seqs_field
from driftq.model.units import NS_PER_MS
from driftq.server import Server
from driftq.system.clock import Clock

_MANY_BYTES = 2048
"""A body of more bytes is decoded only after its topic was found to take writes."""
_WRITTEN = b'%b%d,"last_seq":%d,%b%b,"performance":{"server_total_ms":%b,"wal_append_ms":%b,"fsync_ms":%b}}'


class _WrittenTexts:
    """Renders replies like `written_reply` for writes to one existing topic with one query, faster."""

    def __init__(self, request: Request, *, with_seqs: bool) -> None:
        self.request = Request(request.method, request.path)
        """Method and path of the requests, for the error log."""
        self._start = b'{"topic":"%b","first_seq":' % request.params[0].encode()
        self.with_seqs = with_seqs
        self._shared: tuple[FrameCommitted, int, bytes, bytes] | None = None
        """Frame, record count, middle and sync time of the newest reply; writes of one frame and count share them."""

    def body(self, first: int, count: int, committed: FrameCommitted, total_ns: int) -> bytes:
        """Return the body of the reply to one write."""
        shared = self._shared
        if shared is None or shared[0] is not committed or shared[1] != count:
            sync = b"%.3f" % shown_sync_ms(committed.sync_ns)
            shared = self._shared = committed, count, self._middle(committed, count), sync
        total = append = b"%.3f" % (total_ns / NS_PER_MS)
        if committed.sync_ns:
            append = b"%.3f" % (max(0, total_ns - committed.sync_ns) / NS_PER_MS)
        seqs = seqs_field(first, count) if self.with_seqs else b""
        return _WRITTEN % (self._start, first, first + count - 1, seqs, shared[2], total, append, shared[3])

    def _middle(self, committed: FrameCommitted, count: int) -> bytes:
        synced = b"null" if committed.synced_seq is None else b"%d" % committed.synced_seq
        return MIDDLE % (committed.head_seq, count, b"false", b"false", synced)


class _ShortAnswer(Struct, eq=False, gc=False):
    """Answers the caller of one write on the short path (`engine/write/appender:WriteCaller`)."""

    texts: _WrittenTexts
    replies: Replies
    clock: Clock
    began_ns: int
    slow_ns: int
    slot: ReplySlot | None = None

    def answer(self, first_seq: int, count: int, committed: FrameCommitted) -> None:
        """Send the answer to a committed write."""
        assert self.slot is not None
        total_ns = self.clock.monotonic_ns() - self.began_ns
        body = self.texts.body(first_seq, count, committed, total_ns)
        if total_ns > self.slow_ns:
            self._name()
            self.replies.settle(self.slot, Reply(200, body))
        else:
            self.replies.tell(self.slot, body)

    def fail(self, error: BaseException) -> None:
        """Send the answer to a write that failed."""
        assert self.slot is not None
        self.replies.settle(self.slot, failed_reply(self._name(), error))

    def _name(self) -> Request:
        """Put a request into the slot, so that the answer is logged."""
        assert self.slot is not None
        self.slot.request = replace(self.texts.request, began_ns=self.began_ns)
        return self.slot.request


class ShortWrites:
    """Finds the short path for writes with a given head."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def shortcut(self, request: Request) -> Shortcut | None:
        """Return a function that takes the bodies of writes with this head, or None if it needs the long path."""
        if request.header(b"content-type") != JSON or request.header(b"idempotency-key") is not None:
            return None
        server, clock = self._server, self._server.clock
        name = request.params[0]
        texts = _WrittenTexts(request, with_seqs=request.flag("return_seqs", True))
        check_ready, take, takes = server.check_ready, server.engine.take, server.engine.takes
        limits = server.settings.limits
        # A long list of seqs may be compressed, which the short path does not do.
        most = PACKED_MIN if texts.with_seqs and takes_gzip(request.headers) else limits.body_bytes_max
        monotonic_ns = clock.monotonic_ns
        slow_ns = server.settings.slow_request_ms * NS_PER_MS or NEVER_NS

        def shortcut(body: bytes, replies: Replies) -> bool:
            began_ns = monotonic_ns()
            if len(body) > most or (len(body) > _MANY_BYTES and not takes(name)):
                return False
            plain = decode_plain(body, limits)
            if plain is None:
                return False
            rows, key = plain
            answer = _ShortAnswer(texts, replies, clock, began_ns, slow_ns)
            try:
                check_ready()
                if not take(name, rows, key, answer):
                    return False
            except DriftQError:
                return False  # the long path reports the reason
            answer.slot = replies.expect()
            return True

        return shortcut
