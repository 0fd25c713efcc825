"""The segment manifest (http-v0 §22.2): which files hold which seqs, so that a reader can plan a parallel read.

One request answers the manifest of one topic, another those of up to 1000 topics, so that a reader of many small topics
costs the server one request.

It lists sealed segments, hot and cold. A listed file may be missing when it is opened, because retention dropped its
segment or relocation moved it: then the reader asks for the manifest again. A file that is already open stays readable.
"""

from typing import Annotated

from msgspec import UNSET, Meta, Struct
from msgspec.json import Decoder

from driftq.engine.read.seq_lookup import end_of_live
from driftq.engine.state.segment import Segment
from driftq.engine.state.topic import Topic
from driftq.errors import InvalidRequestError
from driftq.http.access import Scope
from driftq.http.answer import Answer
from driftq.http.reply import Reply, json_reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v0.bodies import U32, U64, check_u64, decode_body, since_ms
from driftq.http.v0.paging import PAGE_SIZE_MAX, Paging, decode_cursor
from driftq.model.v0_additions import HoleRow, ManifestRow, SegmentManifest, SegmentManifests, SegmentRow
from driftq.model.v0_answers import Performance
from driftq.server import Server
from driftq.storage.layout import segment_file
from driftq.system.runtime import Pending, run


class RecordsAfter(Struct):
    """A place in a topic, and the number of live records wanted from there."""

    seq: U64
    records: Annotated[int, Meta(ge=1)]


class ManifestsBody(Struct):
    """The body of a request for the manifests of many topics."""

    topics: list[str] | None = None
    prefix: str = ""
    cursor: str = ""
    page_size: U32 = PAGE_SIZE_MAX
    after: dict[str, RecordsAfter] = {}


_BODY = Decoder(ManifestsBody)


class Segments:
    """The handler of the segment manifest."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def routes(self) -> list[Route]:
        """Return the routes of manifests."""
        return [
            Route("GET", "/v0/topics/:topic/segments", self.get, Scope.READ, guards_name=True),
            Route("POST", "/v0/segments", self.of_many, Scope.READ, names_topics=True),
        ]

    def get(self, request: Request) -> Answer:
        """Return the manifest of a topic."""
        server = self._server
        server.engine.topic(request.params[0])
        if server.cold_root is None:
            return self._manifest(request)

        async def answer() -> Reply:
            await server.cold_mark.made(server.server_id)
            return self._manifest(request)

        return run(answer())

    def of_many(self, request: Request) -> Pending[Reply]:
        """Return the manifests of the topics that the body names, or of one page of all topics."""
        server = self._server
        body = decode_body(_BODY, request, body_bytes_max=server.settings.limits.body_bytes_max, optional=True)
        for start in body.after.values():
            check_u64(start.seq, "after.seq")
        names, cursor = self._names(request, body)

        async def answer() -> Reply:
            catalog = server.engine.catalog
            for name in names:
                topic = catalog.find(name)
                waiting = None if topic is None else server.engine.bring(topic)
                if waiting is not None:
                    await waiting
            if server.cold_root is not None:
                await server.cold_mark.made(server.server_id)
            topics = [topic for name in names if (topic := catalog.find(name)) is not None]
            found = SegmentManifests(
                server.server_id,
                server.hot_root,
                server.cold_root,
                [_manifest_row(topic, body.after.get(topic.name)) for topic in topics],
                performance=Performance(since_ms(request.began_ns, server.clock.monotonic_ns())),
                next_cursor=cursor,
            )
            return json_reply(200, found)

        return run(answer())

    def _names(self, request: Request, body: ManifestsBody) -> tuple[list[str], str | None]:
        """Return the names of a page, sorted, and the cursor of the next page."""
        catalog = self._server.engine.catalog
        if body.topics is None:
            page = Paging(body.prefix, decode_cursor(body.cursor), min(max(body.page_size, 1), PAGE_SIZE_MAX))
            return page.cut(catalog.names(), lambda name: catalog.find(name) is not None, request.access.prefixes)
        if len(body.topics) > PAGE_SIZE_MAX:
            raise InvalidRequestError(f"topics has {len(body.topics)} names; the limit is {PAGE_SIZE_MAX}")
        for name in body.topics:
            request.access.check_name(name)
        return sorted(set(body.topics)), None

    def _manifest(self, request: Request) -> Reply:
        server = self._server
        topic = server.engine.topic(request.params[0])
        return json_reply(
            200,
            SegmentManifest(
                topic.name,
                topic.id,
                topic.id,
                topic.head,
                topic.earliest,
                topic.evict_floor,
                server.engine.synced_or_none(topic),
                _holes(topic),
                server.server_id,
                server.hot_root,
                server.cold_root,
                _sealed(topic),
                Performance(since_ms(request.began_ns, server.clock.monotonic_ns())),
            ),
        )


def _manifest_row(topic: Topic, start: RecordsAfter | None) -> ManifestRow:
    return ManifestRow(
        topic.name,
        topic.id,
        topic.head,
        topic.earliest,
        topic.evict_floor,
        topic.count,
        topic.payload,
        topic.last_ts or None,
        _holes(topic),
        _sealed(topic),
        UNSET if start is None else end_of_live(topic, start.seq, start.records),
    )


def _holes(topic: Topic) -> list[HoleRow]:
    return [HoleRow(hole.first, hole.last, hole.reason, hole.at_most) for hole in topic.holes.all]


def _sealed(topic: Topic) -> list[SegmentRow]:
    return [_row(topic, segment) for segment in topic.segments if segment.sealed]


def _row(topic: Topic, segment: Segment) -> SegmentRow:
    index = segment.index
    blocks = range(len(index))
    return SegmentRow(
        "cold" if segment.cold else "hot",
        segment_file(topic.id, segment.first_seq, "parquet" if segment.cold else "data"),
        segment.first_seq,
        segment.end_seq - 1,
        sum(map(index.count, blocks)),
        segment.live,
        sum(map(index.payload, blocks)),
        index.first_ts(0),
        segment.last_ts,
    )
