"""The handlers of watches: create a session, open its stream (http-v0 §12)."""

from driftq.errors import NotFoundError, UnauthorizedError
from driftq.features.watch.position import ReadStart, StartedRead, begin
from driftq.features.watch.watch_sessions import SESSION_TTL_MS
from driftq.http import event_stream as sse
from driftq.http.access import Scope
from driftq.http.answer import Answer, StreamAnswer
from driftq.http.reply import Reply, json_reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v0.bodies import check_u64, decode_body, since_ms
from driftq.http.v0.streams.watch_bodies import WATCH_BODY, WatchBody, options_of, starts_of
from driftq.http.v0.streams.watch_events import Frames, decode_id
from driftq.http.v0.streams.watch_stream import WatchStream
from driftq.model.v0_answers import Cursor, Performance, Watching
from driftq.server import Server
from driftq.system.runtime import Pending, run

_HEARTBEAT_MS_MIN, _HEARTBEAT_MS_MAX = 1000, 60_000


def cursors_of(begun: dict[str, StartedRead], *, with_epoch: bool) -> dict[str, Cursor]:
    """Return the started cursors in the form of an answer."""
    return {
        name: Cursor(one.place.cursor, one.head_seq, one.earliest_seq, one.epoch if with_epoch else None)
        for name, one in begun.items()
    }


class Watches:
    """Creates watch sessions and opens their streams: the handlers of `/v0/watch`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._watch = server.watch
        self._frames = Frames()
        self._limits = server.settings.limits
        floor = max(1, min(server.settings.test_min_heartbeat_ms, _HEARTBEAT_MS_MIN))
        self._heartbeat_ms_min = floor

    def routes(self) -> list[Route]:
        """Return the routes of watches."""
        return [
            Route("POST", "/v0/watch", self.create, Scope.READ, names_topics=True),
            Route("GET", "/v0/watch/:wid", self.open, stream=True, form_token=True, knows_callers=True),
        ]

    def create(self, request: Request) -> Pending[Reply]:
        """Create a watch session for the topics in the body."""
        body = decode_body(WATCH_BODY, request, body_bytes_max=self._limits.body_bytes_max)
        for name in body.topics:
            request.access.check_name(name)
        starts = starts_of(body.topics, self._limits)
        check_u64(body.heartbeat_ms, "heartbeat_ms")
        return run(self._created(request, body, starts))

    async def _created(self, request: Request, body: WatchBody, starts: dict[str, ReadStart]) -> Reply:
        options = options_of(body, self._limits)
        lenient = request.flag("lenient", False)
        begun = await begin(self._server.engine, starts, lenient=lenient, strong=options.strong)
        heartbeat_ms = min(max(body.heartbeat_ms, self._heartbeat_ms_min), _HEARTBEAT_MS_MAX)
        places = {name: one.place for name, one in begun.items()}
        session = self._watch.sessions.create(request.access.key_id, places, options, heartbeat_ms)
        return json_reply(
            200,
            Watching(
                session.wid,
                f"/v0/watch/{session.wid}",
                SESSION_TTL_MS,
                cursors_of(begun, with_epoch=body.include_epoch),
                Performance(since_ms(request.began_ns, self._server.clock.monotonic_ns())),
            ),
        )

    def open(self, request: Request) -> Answer:
        """Open the stream of a session. Only the key that created the session may do this."""
        session = self._watch.sessions.find(request.params[0])
        if session is None:
            raise NotFoundError("no such watch session; it may have expired: create a new one")
        if session.owner != request.access.key_id:
            raise UnauthorizedError("this watch session was created with another key")
        slot = self._server.admission.take_stream(session.owner)
        supplied = request.header(b"last-event-id")
        if supplied is None:
            argument = request.argument("cursor")
            supplied = None if argument is None else argument.encode()
        cursors = None if supplied is None else decode_id(supplied)
        return StreamAnswer(WatchStream(self._watch, self._frames, session, slot, cursors or {}), headers=sse.HEADERS)
