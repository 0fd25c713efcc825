"""The segment manifest (http-v0 §22.2): which files hold which seqs, so that a reader can plan a parallel read.

It lists sealed segments, hot and cold. A listed file may be missing when it is opened, because retention dropped its
segment or relocation moved it: then the reader asks for the manifest again. A file that is already open stays readable.
"""

from driftq.engine.state.segment import Segment
from driftq.engine.state.topic import Topic
from driftq.http.access import Scope
from driftq.http.answer import Answer
from driftq.http.reply import Reply, json_reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v0.bodies import since_ms
from driftq.model.v0_additions import HoleRow, SegmentManifest, SegmentRow
from driftq.model.v0_answers import Performance
from driftq.server import Server
from driftq.storage.layout import segment_file
from driftq.system.runtime import run


class Segments:
    """The handler of the segment manifest."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def routes(self) -> list[Route]:
        """Return the route of the manifest."""
        return [Route("GET", "/v0/topics/:topic/segments", self.get, Scope.READ, guards_name=True)]

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
                [HoleRow(hole.first, hole.last, hole.reason, hole.at_most) for hole in topic.holes.all],
                server.server_id,
                server.hot_root,
                server.cold_root,
                [_row(topic, segment) for segment in topic.segments if segment.sealed],
                Performance(since_ms(request.began_ns, server.clock.monotonic_ns())),
            ),
        )


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
