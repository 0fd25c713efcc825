"""The JSON bodies of writes, diffs and deletes (http-v0 §6-§10): requests as structs, replies as bytes.

Replies on the hot path are filled-in templates: numbers, and records as the bytes that `codec/record_json` made. The
name of an existing topic contains nothing to escape, so it is inserted as it is.
"""

from msgspec import UNSET, Struct, UnsetType
from msgspec.json import Decoder, encode

from driftq.codec.arrow_page import arrow_pieces
from driftq.codec.record_json import Fields, render_records
from driftq.engine.read.topic_page import Page
from driftq.engine.write.appender import AppendResult, FrameCommitted
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.v0.bodies import ARROW, U32, U64, shown_sync_ms
from driftq.model.units import NS_PER_MS
from driftq.system.clock import Clock


class DiffBody(Struct, gc=False):
    """The body of a diff (§8)."""

    from_seq: U64 | UnsetType = UNSET
    from_ts: U64 | UnsetType = UNSET
    limit: U32 = 0
    node: str | list[str] | None = None
    include_tags: bool | UnsetType = UNSET
    include_meta: bool = True
    wait_ms: U32 = 0
    max_batch_bytes: U64 = 0
    epoch: U64 | None = None


class DeleteBody(Struct):
    """The body of a delete (§10); `engine/write/deleter` checks `match`."""

    before_seq: U64 | None = None
    match: object = None


DIFF_BODY = Decoder(DiffBody)
DELETE_BODY = Decoder(DeleteBody)


_MIDDLE = b'"head_seq":%d,"count":%d,"created":%b,"deduped":%b,"synced_seq":%b'
_WRITTEN = b'{"topic":"%b","first_seq":%d,"last_seq":%d,%b' + _MIDDLE
_FIGURES = b',"performance":{"server_total_ms":%.3f,"wal_append_ms":%.3f,"fsync_ms":%.3f}}'
_SHORT = b'%b%d,"last_seq":%d,%b%b,"performance":{"server_total_ms":%b,"wal_append_ms":%b,"fsync_ms":%b}}'
_NO_FIGURES = b',"performance":{"server_total_ms":%.3f}}'
_BOOL = (b"false", b"true")


def written_reply(request: Request, done: AppendResult, clock: Clock, submitted_ns: int, with_seqs: bool) -> Reply:
    """Return the reply to a write (§7, §22.6). `wal_append_ms` is the time since submission without the sync."""
    count = done.last_seq - done.first_seq + 1
    head = _WRITTEN % (
        request.params[0].encode(),
        done.first_seq,
        done.last_seq,
        _seqs(done.first_seq, count) if with_seqs else b"",
        done.head_seq,
        count,
        _BOOL[done.created],
        _BOOL[done.deduped],
        b"null" if done.synced_seq is None else b"%d" % done.synced_seq,
    )
    now_ns = clock.monotonic_ns()
    total_ms = (now_ns - request.began_ns) / NS_PER_MS
    if done.deduped:
        return Reply(200, head + _NO_FIGURES % total_ms)
    append_ms = max(0, now_ns - submitted_ns - done.sync_ns) / NS_PER_MS
    figures = _FIGURES % (total_ms, append_ms, shown_sync_ms(done.sync_ns))
    return Reply(201 if done.created else 200, head + figures)


def _seqs(first: int, count: int) -> bytes:
    if count == 1:
        return b'"seqs":[%d],' % first
    return b'"seqs":[%b],' % ",".join(map(str, range(first, first + count))).encode()


class WrittenTexts:
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
        seqs = _seqs(first, count) if self.with_seqs else b""
        return _SHORT % (self._start, first, first + count - 1, seqs, shared[2], total, append, shared[3])

    def _middle(self, committed: FrameCommitted, count: int) -> bytes:
        synced = b"null" if committed.synced_seq is None else b"%d" % committed.synced_seq
        return _MIDDLE % (committed.head_seq, count, _BOOL[False], _BOOL[False], synced)


_PAGE_HEAD = b'{"topic":"%b","records":['
_PAGE_TAIL = (
    b'],"next_from_seq":%d,"head_seq":%d,"earliest_seq":%d,"caught_up":%b,"tombstone":%b,"lag":%d,"epoch":%d,'
    b'"performance":{"server_total_ms":%.3f,"records_scanned":%d%b}}'
)


def page_reply(request: Request, page: Page, fields: Fields, clock: Clock) -> Reply:
    """Return the reply to a diff, as JSON or Arrow (§8, §22.1)."""
    if fields.arrow:
        return Reply(200, content_type=ARROW, more=arrow_pieces(request.params[0], page, fields))
    records = render_records(page, fields)
    tail = _PAGE_TAIL % (
        page.next_from_seq,
        page.head_seq,
        page.earliest_seq,
        _BOOL[page.caught_up],
        b"null" if page.tombstone is None else encode(page.tombstone),
        page.lag,
        page.epoch,
        (clock.monotonic_ns() - request.began_ns) / NS_PER_MS,
        page.scanned,
        b',"cold_segments_read":%d' % page.cold_segments if page.cold_segments else b"",
    )
    return Reply(200, _PAGE_HEAD % request.params[0].encode(), more=(records, tail))
