"""The handlers of named cursors (http-v0 §22.4)."""

from msgspec import Struct
from msgspec.json import Decoder

from driftq.codec.write_body import meta_column
from driftq.engine.state.topic import Topic
from driftq.features.cursors import NamedCursor
from driftq.http.access import Scope
from driftq.http.reply import Reply, json_reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v0.bodies import U64, check_u64, decode_body, since_ms
from driftq.http.v0.paging import Paging
from driftq.model.v0_additions import CursorDeleted, CursorList, CursorMoved, CursorRow, CursorState
from driftq.model.v0_answers import Performance
from driftq.server import Server
from driftq.system.runtime import Pending, run

_CURSORS = "/v0/topics/:topic/cursors"


class CursorPut(Struct):
    """The body of a PUT of a cursor."""

    seq: U64
    epoch: U64 | None = None
    rewind: bool = False
    meta: dict[str, str] | None = None


_PUT = Decoder(CursorPut)


class Cursors:
    """Moves, reports and deletes named cursors: the handlers of `/v0/topics/:topic/cursors`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._engine = server.engine
        self._cursors = server.cursors
        self._limits = server.settings.limits

    def routes(self) -> list[Route]:
        """Return the routes of named cursors."""
        one = f"{_CURSORS}/:name"
        return [
            Route("GET", _CURSORS, self.list, Scope.READ, guards_name=True),
            Route("PUT", one, self.put, Scope.WRITE, guards_name=True),
            Route("GET", one, self.get, Scope.READ, guards_name=True),
            Route("DELETE", one, self.delete, Scope.WRITE, guards_name=True),
        ]

    def put(self, request: Request) -> Pending[Reply]:
        """Move a cursor, or create it if it does not exist."""
        body = decode_body(_PUT, request, body_bytes_max=self._limits.body_bytes_max)
        check_u64(body.seq, "seq")
        check_u64(body.epoch, "epoch")
        meta_column([body.meta], self._limits.meta_bytes_max)

        async def answer() -> Reply:
            topic, name = request.params
            done = await self._cursors.put(topic, name, body.seq, epoch=body.epoch, rewind=body.rewind, meta=body.meta)
            found = self._engine.topic(topic)
            cursor = done.cursor
            return json_reply(
                200,
                CursorMoved(
                    topic,
                    name,
                    cursor.seq,
                    found.id,
                    found.head,
                    found.head - cursor.seq,
                    cursor.updated_ts,
                    done.moved,
                    self._figures(request),
                ),
            )

        return run(answer())

    def get(self, request: Request) -> Reply:
        """Report the position of a cursor."""
        name, cursor = request.params
        found = self._cursors.get(name, cursor)
        row = _fields(self._engine.topic(name), cursor, found)
        return json_reply(200, CursorState(*row, self._figures(request)))

    def list(self, request: Request) -> Reply:
        """List one page of a topic's cursors."""
        topic = self._engine.topic(request.params[0])
        found = self._cursors.all(topic.name)
        names, cursor = Paging.of(request).cut(sorted(found), lambda _: True)
        rows = [CursorRow(*_fields(topic, name, found[name])) for name in names]
        return json_reply(200, CursorList(rows, performance=self._figures(request), next_cursor=cursor))

    def delete(self, request: Request) -> Pending[Reply]:
        """Delete a cursor and report whether it existed."""

        async def answer() -> Reply:
            topic, name = request.params
            deleted = await self._cursors.delete(topic, name)
            return json_reply(200, CursorDeleted(topic, name, deleted, self._figures(request)))

        return run(answer())

    def _figures(self, request: Request) -> Performance:
        return Performance(since_ms(request.began_ns, self._server.clock.monotonic_ns()))


def _fields(topic: Topic, name: str, cursor: NamedCursor) -> tuple[str, str, int, int, int, int, int, dict[str, str]]:
    return (
        topic.name,
        name,
        cursor.seq,
        topic.id,
        topic.head,
        topic.head - cursor.seq,
        cursor.updated_ts,
        cursor.meta or {},
    )
