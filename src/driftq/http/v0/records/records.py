"""The handlers that write, read and delete records (http-v0 §7-§10).

Writes and reads are the hot path, so they use a coroutine only if they have to wait.
"""

from msgspec import UNSET

from driftq.codec.arrow_write_body import decode_arrow
from driftq.codec.record_json import Fields
from driftq.codec.write_body import WriteRequest, brings_config, check_key, decode_write
from driftq.engine.block_fetch import Fetch
from driftq.engine.read.topic_page import Page, PageQuery
from driftq.engine.write.appender import AppendResult
from driftq.engine.write.deleter import Deleted, parse_match
from driftq.errors import InvalidRequestError
from driftq.http.access import FULL, Scope
from driftq.http.answer import Answer, Promise
from driftq.http.reply import Reply, json_reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v0.bodies import (
    ARROW,
    JSON,
    check_media_type,
    check_size,
    check_u64,
    decode_body,
    has_media_type,
    since_ms,
)
from driftq.http.v0.broker_topics import check_inline
from driftq.http.v0.errors import failed_reply
from driftq.http.v0.records.long_poll import Poll
from driftq.http.v0.records.record_bodies import DELETE_BODY, DIFF_BODY, page_reply, written_reply
from driftq.http.v0.records.short_write import ShortWrites
from driftq.model.limits import ARROW_WRITE_RECORDS_MAX
from driftq.model.v0_answers import Performance, RecordsDeleted
from driftq.server import Server
from driftq.system.clock import Clock
from driftq.system.runtime import Pending, run

_TOPIC = "/v0/topics/:topic"
_WAIT_MS_MAX = 30_000
_NOBODY: frozenset[bytes] = frozenset()


class _Written(Promise, eq=False, kw_only=True):
    """The reply to a write, resolved when the write is committed."""

    request: Request
    clock: Clock
    submitted_ns: int
    with_seqs: bool

    def settle(self, done: Pending[AppendResult]) -> None:
        """Resolve with the reply to the write, or with the reply to its error."""
        try:
            reply = written_reply(self.request, done.result(), self.clock, self.submitted_ns, self.with_seqs)
        except Exception as error:  # noqa: BLE001  # any error is the answer to this caller only
            reply = failed_reply(self.request, error)
        self.resolve(reply)


class Records:
    """The handlers of write, diff and delete."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._engine = server.engine
        self._clock = server.clock
        self._limits = server.settings.limits

    def routes(self) -> list[Route]:
        """Return the routes of write, diff and delete."""
        return [
            Route(
                "POST", _TOPIC, self.write, Scope.WRITE, guards_name=True, shortcut=ShortWrites(self._server).shortcut
            ),
            Route("POST", f"{_TOPIC}/diff", self.diff, Scope.READ, guards_name=True),
            Route("POST", f"{_TOPIC}/delete", self.delete, Scope.DELETE, guards_name=True),
        ]

    # Write

    def write(self, request: Request) -> Answer:
        """Append records; create the topic first if it does not exist and creating it is allowed."""
        name = request.params[0]
        check_size(request, self._limits.body_bytes_max)
        if request.header(b"content-type") != JSON:
            if has_media_type(request, ARROW):
                return self._write_arrow(request)
            check_media_type(request, JSON)
        access = request.access
        if (
            access is not FULL
            and not access.may(Scope.ADMIN)
            and self._engine.would_create(name)
            and brings_config(request.body)
        ):
            access.check(Scope.ADMIN)
        header = request.header(b"idempotency-key")
        key = None if header is None else header.decode("utf-8", "surrogateescape")
        wanted = decode_write(request.body, self._limits, default_key=key)
        if wanted.config is not None:
            check_inline(self._engine, name, wanted.config)
        return self._append(request, wanted, with_seqs=request.flag("return_seqs", True))

    def _write_arrow(self, request: Request) -> Answer:
        """Append records from an Arrow stream (§22.1); the query holds the fields that JSON has beside the records."""
        rows = decode_arrow(request.body, self._limits, ARROW_WRITE_RECORDS_MAX, node=request.argument("node") or None)
        create = request.flag("create", True) if request.argument("create") is not None else None
        header = request.header(b"idempotency-key")
        given = request.argument("idempotency_key") or (None if header is None else header.decode("utf-8", "replace"))
        wanted = WriteRequest(rows, check_key(given), create)
        return self._append(request, wanted, with_seqs=request.flag("return_seqs", False))

    def _append(self, request: Request, wanted: WriteRequest, *, with_seqs: bool) -> Answer:
        name = request.params[0]
        answer = _Written(
            request=request, clock=self._clock, submitted_ns=self._clock.monotonic_ns(), with_seqs=with_seqs
        )
        self._engine.append(
            name,
            wanted.rows,
            key=wanted.idempotency_key,
            create=wanted.create,
            config=wanted.config,
            yields=not wanted.disable_backpressure,
        ).then(answer.settle)
        return answer

    # Read

    def diff(self, request: Request) -> Answer:
        """Return the page after a cursor. If it is empty, the caller may wait for records."""
        body = decode_body(DIFF_BODY, request, body_bytes_max=self._limits.body_bytes_max, optional=True)
        from_seq = 0 if body.from_seq is UNSET else body.from_seq
        check_u64(from_seq, "from_seq")
        check_u64(body.max_batch_bytes, "max_batch_bytes")
        check_u64(body.epoch, "epoch")
        nodes = body.node
        if isinstance(nodes, str):
            nodes = [nodes]
        arrow = ARROW in (request.header(b"accept") or b"")
        query = PageQuery(
            from_seq,
            body.limit,
            frozenset(map(str.encode, nodes)) if nodes else _NOBODY,
            body.max_batch_bytes,
            bulk=arrow,
            epoch=body.epoch,
        )
        # Arrow pages include the tag column unless the request excludes it.
        tags = arrow if body.include_tags is UNSET else body.include_tags
        fields = Fields(tags=tags, meta=body.include_meta, arrow=arrow)
        if body.from_ts is not UNSET:
            check_u64(body.from_ts, "from_ts")
            if body.from_seq is not UNSET:
                raise InvalidRequestError("from_ts cannot be combined with from_seq")
            return run(self._read_from(request, body.from_ts, query, fields, body.wait_ms))
        topic = self._engine.catalog.get(request.params[0])
        waiting = self._engine.bring(topic) if self._engine.topic_copiers else None
        if waiting is not None:
            return run(self._read_later(request, query, fields, body.wait_ms, waiting))
        found = self._engine.diff(topic.name, query)
        if isinstance(found, Fetch):
            return run(self._read_later(request, query, fields, body.wait_ms, found))
        return self._answer(request, query, fields, body.wait_ms, found)

    async def _read_from(self, request: Request, ts: int, query: PageQuery, fields: Fields, wait_ms: int) -> Reply:
        """Return the page that starts at a time (§22.3)."""
        topic = await self._engine.fresh(request.params[0])
        query = query._replace(from_seq=await self._engine.seek(topic.name, ts), epoch=None)
        page = await self._engine.read(topic.name, query)
        answer = self._answer(request, query, fields, wait_ms, page)
        return await answer if isinstance(answer, Pending) else answer

    async def _read_later(
        self, request: Request, query: PageQuery, fields: Fields, wait_ms: int, waiting: Pending[None]
    ) -> Reply:
        await waiting
        page = await self._engine.read(request.params[0], query)
        answer = self._answer(request, query, fields, wait_ms, page)
        return await answer if isinstance(answer, Pending) else answer

    def _answer(
        self, request: Request, query: PageQuery, fields: Fields, wait_ms: int, page: Page
    ) -> Reply | Pending[Reply]:
        self._engine.touch(self._engine.catalog.get(request.params[0]))
        if wait_ms and not page.slices and page.tombstone is None and page.caught_up:
            # A cursor above the head was moved down to the head; the next page must start there.
            query = query._replace(from_seq=page.next_from_seq)
            return Poll(self._server, request, query, fields, page).park(min(wait_ms, _WAIT_MS_MAX))
        return page_reply(request, page, fields, self._clock)

    # Delete

    def delete(self, request: Request) -> Pending[Reply]:
        """Delete records by seq, by tag, or by both."""
        name = request.params[0]
        body = decode_body(DELETE_BODY, request, body_bytes_max=self._limits.body_bytes_max)
        check_u64(body.before_seq, "before_seq")
        if body.before_seq is None and body.match is None:
            raise InvalidRequestError("a delete needs before_seq or match")
        match = None if body.match is None else parse_match(body.match)

        async def answer() -> Reply:
            done: Deleted = await self._engine.delete_records(name, before_seq=body.before_seq, match=match)
            figures = Performance(since_ms(request.began_ns, self._clock.monotonic_ns()))
            return json_reply(
                200,
                RecordsDeleted(name, done.deleted, done.earliest_seq, done.head_seq, done.count, done.payload, figures),
            )

        return run(answer())
