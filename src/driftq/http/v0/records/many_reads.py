"""The read of many topics in one request (http-v0 §22.1), for readers of many small topics.

The answer has one Arrow stream per read, one after another. It may end before the last read, when it is large enough;
the caller asks again for the rest.
"""

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.json import Decoder

from driftq.codec.arrow_page import arrow_pieces
from driftq.codec.record_json import Fields
from driftq.engine.read.topic_page import PageQuery
from driftq.errors import InvalidRequestError
from driftq.http.access import Scope
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v0.bodies import ARROW, U32, U64, check_u64, decode_body
from driftq.server import Server
from driftq.system.runtime import Pending, run

_READS_MAX = 100
"""Each read takes the loop about 0.1 ms, so a request holds up others for 10 ms at most."""
_BYTES_MAX = 64 << 20


class TopicRead(Struct):
    """One topic, and the page of it that is wanted."""

    topic: str
    from_seq: U64 = 0
    limit: U32 = 0


class ReadsBody(Struct):
    """The body of a read of many topics."""

    reads: Annotated[list[TopicRead], Meta(min_length=1, max_length=_READS_MAX)]
    include_tags: bool = True
    include_meta: bool = True
    max_batch_bytes: U64 = 0


_BODY = Decoder(ReadsBody)


class ManyReads:
    """The handler of the read of many topics."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def routes(self) -> list[Route]:
        """Return the route of the read of many topics."""
        return [Route("POST", "/v0/reads", self.read, Scope.READ, names_topics=True)]

    def read(self, request: Request) -> Pending[Reply]:
        """Return the pages that the body asks for, as Arrow streams one after another."""
        engine = self._server.engine
        body = decode_body(_BODY, request, body_bytes_max=self._server.settings.limits.body_bytes_max)
        if ARROW not in (request.header(b"accept") or b""):
            raise InvalidRequestError(f"POST /v0/reads needs the header Accept: {ARROW.decode()}")
        check_u64(body.max_batch_bytes, "max_batch_bytes")
        for read in body.reads:
            check_u64(read.from_seq, "from_seq")
            request.access.check_name(read.topic)
        fields = Fields(tags=body.include_tags, meta=body.include_meta, arrow=True)
        most = min(body.max_batch_bytes or _BYTES_MAX, _BYTES_MAX)

        async def answer() -> Reply:
            pieces: list[bytes] = []
            left = most
            for read in body.reads:
                if left <= 0:
                    break
                topic = await engine.fresh(read.topic)
                page = await engine.read(
                    topic.name, PageQuery(read.from_seq, read.limit, max_batch_bytes=left, bulk=True)
                )
                engine.touch(engine.topic(read.topic))
                streams = arrow_pieces(read.topic, page, fields)
                left -= sum(map(len, streams))
                pieces += streams
            return Reply(200, content_type=ARROW, more=pieces)

        return run(answer())
