"""The handlers of staged writes: parts, commits, writers (http-v0 §22.5)."""

from msgspec import UNSET, Struct
from msgspec.json import Decoder

from driftq.codec.arrow_write_body import decode_arrow
from driftq.codec.write_body import decode_write
from driftq.errors import InvalidRequestError
from driftq.features.staging.staged_parts import PartAddress
from driftq.features.staging.staging import PartRef, check_writer
from driftq.http.access import Scope
from driftq.http.reply import Reply, json_reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v0.bodies import (
    ARROW,
    JSON,
    U64,
    check_media_type,
    check_size,
    check_u64,
    decode_body,
    has_media_type,
    since_ms,
)
from driftq.model.limits import U64_MAX
from driftq.model.topic_config import TopicConfig
from driftq.model.units import NS_PER_MS
from driftq.model.v0_additions import BatchCommitted, PartsDropped, PartStaged, StagedWriterState
from driftq.model.v0_answers import Performance
from driftq.server import Server
from driftq.storage.blocks.rows import Rows
from driftq.system.runtime import Pending, run

_TOPIC = "/v0/topics/:topic"


class PartBody(Struct):
    """One part in the body of a commit."""

    part: U64
    attempt: U64
    chunks: U64


class CommitRequest(Struct):
    """The body of a commit."""

    writer: str
    batch: U64
    parts: list[PartBody]
    epoch: U64 | None = None


_COMMIT = Decoder(CommitRequest)


class StagedWrites:
    """The handlers of staged writes."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._engine = server.engine
        self._staging = server.staging
        self._limits = server.settings.limits

    def routes(self) -> list[Route]:
        """Return the routes of staged writes."""
        return [
            Route("POST", f"{_TOPIC}/stage", self.stage, Scope.WRITE, guards_name=True),
            Route("POST", f"{_TOPIC}/commit", self.commit, Scope.WRITE, guards_name=True),
            Route("GET", f"{_TOPIC}/writers/:writer", self.writer, Scope.READ, guards_name=True),
            Route("DELETE", f"{_TOPIC}/stage/:writer", self.drop, Scope.WRITE, guards_name=True),
        ]

    def stage(self, request: Request) -> Pending[Reply]:
        """Store one chunk of a part until its batch is committed; with `create`, create a missing topic first."""
        name = request.params[0]
        rows = self._rows(request)
        writer = request.argument("writer") or ""
        check_writer(writer)
        batch, part, attempt = (_number(request, field) for field in ("batch", "part", "attempt"))
        address = PartAddress(batch, part, attempt, _number(request, "chunk", "0"))

        create = request.argument("create") is not None and request.flag("create", True)

        async def answer() -> Reply:
            if create and self._engine.would_create(name):
                await self._engine.ensure_topic(name, TopicConfig().resolved(name))
            done = await self._staging.stage(name, writer, address, rows)
            return json_reply(
                200,
                PartStaged(name, writer, *address, done.records, done.payload, done.expires_ts, self._figures(request)),
            )

        return run(answer())

    def _rows(self, request: Request) -> Rows:
        check_size(request, self._limits.body_bytes_max)
        if has_media_type(request, ARROW):
            return decode_arrow(request.body, self._limits, self._limits.batch_records_max)
        check_media_type(request, JSON)
        return decode_write(request.body, self._limits).columns

    def commit(self, request: Request) -> Pending[Reply]:
        """Append the records of the listed parts to the topic, all or none."""
        name = request.params[0]
        body = decode_body(_COMMIT, request, body_bytes_max=self._limits.body_bytes_max)
        for field, value in (("batch", body.batch), ("epoch", body.epoch)):
            check_u64(value, field)
        for part in body.parts:
            check_u64(max(part.part, part.attempt, part.chunks), "parts")
        parts = [PartRef(part.part, part.attempt, part.chunks) for part in body.parts]

        async def answer() -> Reply:
            done = await self._staging.commit(name, body.writer, body.batch, parts, body.epoch)
            seqs = range(0) if done.seqs is None else done.seqs
            listed = None if done.seqs is None else list(seqs)
            topic = self._engine.catalog.find(name)
            reply = BatchCommitted(
                name,
                seqs[0] if seqs else None,
                seqs[-1] if seqs else None,
                done.head_seq,
                len(seqs),
                False,
                done.deduped,
                None if topic is None else self._engine.synced_or_none(topic),
                self._figures(request, None if done.deduped else done.sync_ns),
                listed if request.flag("return_seqs", True) else UNSET,
            )
            return json_reply(200, reply)

        return run(answer())

    def writer(self, request: Request) -> Reply:
        """Report the last batch that a writer committed."""
        name, writer = request.params
        found = self._staging.writer(name, writer)
        return json_reply(
            200, StagedWriterState(name, writer, found.batch, found.first, found.last, self._figures(request))
        )

    def drop(self, request: Request) -> Pending[Reply]:
        """Drop the staged parts of a writer."""
        name, writer = request.params

        async def answer() -> Reply:
            dropped = await self._staging.drop(name, writer)
            return json_reply(200, PartsDropped(name, writer, dropped, self._figures(request)))

        return run(answer())

    def _figures(self, request: Request, sync_ns: int | None = None) -> Performance:
        total_ms = since_ms(request.began_ns, self._server.clock.monotonic_ns())
        if sync_ns is None:
            return Performance(total_ms)
        sync_ms = sync_ns / NS_PER_MS
        return Performance(total_ms, wal_append_ms=max(0.0, total_ms - sync_ms), fsync_ms=sync_ms)


def _number(request: Request, field: str, default: str | None = None) -> int:
    """Return a u64 of the part's address. Raise InvalidRequestError if it is not one; a default could be wrong."""
    text = request.argument(field)
    if text is None:
        text = default
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) > _DIGITS_MAX or int(text) > U64_MAX:
        raise InvalidRequestError(f"{field} must be a 64-bit unsigned integer")
    return int(text)


_DIGITS_MAX = 20
