"""The JSON bodies of writes, diffs and deletes (http-v0 §6-§10): requests as structs, replies as bytes.

Replies on the hot path are filled-in templates: numbers, and records as the bytes that `codec/record_json` made. The
name of an existing topic contains nothing to escape, so it is inserted as it is.
"""

from msgspec import UNSET, Struct, UnsetType
from msgspec.json import Decoder, encode

from driftq.codec.arrow_page import arrow_pieces
from driftq.codec.record_json import Fields, render_records
from driftq.engine.read.topic_page import Page
from driftq.engine.write.appender import AppendResult
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.v0.bodies import ARROW, U32, U64, shown_sync_ms
from driftq.model.units import NS_PER_MS
from driftq.system.clock import Clock


class DiffBody(Struct, gc=False):
    """The request body of `POST /v0/topics/:topic/diff`, which reads records after a seq or a time (http-v0 §8)."""

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


MIDDLE = b'"head_seq":%d,"count":%d,"created":%b,"deduped":%b,"synced_seq":%b'
_WRITTEN = b'{"topic":"%b","first_seq":%d,"last_seq":%d,%b' + MIDDLE
_FIGURES = b',"performance":{"server_total_ms":%.3f,"wal_append_ms":%.3f,"fsync_ms":%.3f}}'
_NO_FIGURES = b',"performance":{"server_total_ms":%.3f}}'
_BOOL = (b"false", b"true")


def written_reply(request: Request, done: AppendResult, clock: Clock, submitted_ns: int, with_seqs: bool) -> Reply:
    """Return the reply to a write (§7, §22.6). `wal_append_ms` is the time since submission without the sync."""
    count = done.last_seq - done.first_seq + 1
    head = _WRITTEN % (
        request.params[0].encode(),
        done.first_seq,
        done.last_seq,
        seqs_field(done.first_seq, count) if with_seqs else b"",
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


def seqs_field(first: int, count: int) -> bytes:
    """Return the field that lists the seqs of a write."""
    if count == 1:
        return b'"seqs":[%d],' % first
    return b'"seqs":[%b],' % ",".join(map(str, range(first, first + count))).encode()


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
