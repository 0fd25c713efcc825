"""The handlers of topics: create, change, get, list, delete (http-v0 §6, §22.6)."""

from driftq.codec.topic_config_body import decode_config, decode_patch
from driftq.engine.load.priority import effective_priority
from driftq.engine.state.topic import Topic
from driftq.http.access import Scope
from driftq.http.answer import Answer
from driftq.http.reply import Reply, json_reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v0.bodies import json_body, since_ms
from driftq.http.v0.broker_topics import check_own
from driftq.http.v0.paging import Paging
from driftq.model.names import is_broker_topic
from driftq.model.topic_config import Durability, TopicConfig
from driftq.model.v0_answers import Performance, TopicDeleted, TopicList, TopicPut, TopicRow, TopicState
from driftq.server import Server
from driftq.system.runtime import Pending, Timer, run


class SyncWait:
    """Lets one caller wait until a topic is synced up to a seq."""

    def __init__(self, server: Server, request: Request, seq: int) -> None:
        self._server = server
        self._engine = server.engine
        self._request = request
        self._name = request.params[0]
        self._seq = seq
        self._over: Pending[None] = Pending()
        self._timer: Timer | None = None

    def park(self, wait_ms: int) -> Pending[None] | None:
        """Start waiting at most `wait_ms` milliseconds. Returns None if there is nothing to wait for."""
        if not wait_ms or self._reached():
            return None
        self._engine.synced.add(self._name, self._look)
        self._timer = self._server.runtime.later(wait_ms, self._end)
        self._request.on_hang_up = self._end
        return self._over

    def _reached(self) -> bool:
        topic = self._engine.catalog.find(self._name)
        synced = None if topic is None else self._engine.synced_or_none(topic)
        return synced is None or synced >= self._seq

    def _look(self) -> None:
        if self._reached():
            self._end()

    def _end(self) -> None:
        if self._over.settled:
            return
        self._engine.synced.discard(self._name, self._look)
        self._request.on_hang_up = None
        if self._timer is not None:
            self._timer.cancel()
        self._over.resolve(None)


_TOPIC = "/v0/topics/:topic"
_WAIT_MS_MAX = 30_000
_SETTLE_MS = 250
"""How long a GET waits for the sync of earlier writes, so that two GETs in a row report the same `synced_seq`."""


class TopicEndpoints:
    """Creates, changes, reports and deletes topics: the handlers of `/v0/topics`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._engine = server.engine
        self._body_bytes_max = server.settings.limits.body_bytes_max

    def routes(self) -> list[Route]:
        """Return the routes of topics."""
        return [
            Route("PUT", _TOPIC, self.put, Scope.ADMIN, guards_name=True),
            Route("PATCH", _TOPIC, self.patch, Scope.ADMIN, guards_name=True),
            Route("GET", _TOPIC, self.state, Scope.READ, guards_name=True),
            Route("DELETE", _TOPIC, self.delete, Scope.DELETE, guards_name=True),
            Route("GET", "/v0/topics", self.list, Scope.READ, names_topics=True),
        ]

    def put(self, request: Request) -> Pending[Reply]:
        """Create a topic, or replace its config; with `replace=false`, leave an existing topic unchanged."""
        name = request.params[0]
        replace = request.flag("replace", True)
        given = decode_config(json_body(request, body_bytes_max=self._body_bytes_max, optional=True))
        config = given.resolved(name)
        if config.dead_letter is not None:
            check_own(config.dead_letter)

        async def answer() -> Reply:
            if replace:
                created = await self._engine.put_topic(name, given)
            else:
                created = await self._engine.ensure_topic(name, given)
            found = config if created or replace else self._engine.topic(name).config
            return json_reply(201 if created else 200, TopicPut(name, created, found, self._figures(request)))

        return run(answer())

    def patch(self, request: Request) -> Pending[Reply]:
        """Change some fields of a topic's config."""
        name = request.params[0]
        given = decode_patch(json_body(request, body_bytes_max=self._body_bytes_max))
        dead_letter = given.over(TopicConfig()).resolved(name).dead_letter
        if dead_letter is not None:
            check_own(dead_letter)

        async def answer() -> Reply:
            config = await self._engine.patch_topic(name, given)
            return json_reply(200, TopicPut(name, False, config, self._figures(request)))

        return run(answer())

    def state(self, request: Request) -> Answer:
        """Report a topic's state, after routers have made the copies that are due, and after a sync if asked for."""
        name = request.params[0]
        topic = self._engine.topic(name)
        waiting = self._engine.bring(topic)
        seq, wait_ms = request.number("wait_synced", 0), min(request.number("wait_ms", 0), _WAIT_MS_MAX)
        if waiting is None and not seq and not topic.in_flight.unsynced:
            return self._state(request)

        async def answer() -> Reply:
            if waiting is not None:
                await waiting
            found = self._engine.topic(name)
            hurried = self._engine.hurry(found)
            wait = SyncWait(self._server, request, seq or found.head)
            syncing = wait.park(wait_ms if seq else _SETTLE_MS if hurried else 0)
            if syncing is not None:
                await syncing
            return self._state(request)

        return run(answer())

    def _state(self, request: Request) -> Reply:
        topic = self._engine.topic(request.params[0])
        if request.flag("touch", True):
            self._engine.touch(topic)
        state = TopicState(
            topic.name,
            topic.config.type,
            topic.head,
            topic.earliest,
            topic.head + 1,
            topic.count,
            topic.payload,
            topic.config,
            self._priority(topic),
            topic.last_ts or None,
            None if topic.consumed_at is None else self._engine.time.shown(topic.consumed_at),
            self._engine.synced_or_none(topic),
            topic.id,
            self._figures(request),
            self._server.queue_counts(topic) if topic.config.type == "queue" else None,
        )
        return json_reply(200, state)

    def list(self, request: Request) -> Reply:
        """List one page of the topics that the key may see."""
        catalog = self._engine.catalog
        with_foreign = request.flag("v1", True)
        names, cursor = Paging.of(request).cut(
            catalog.names(),
            lambda name: catalog.find(name) is not None and (with_foreign or not is_broker_topic(name)),
            request.access.prefixes,
        )
        touch = request.flag("touch", False)
        rows = [self._row(name, touch=touch) for name in names]
        return json_reply(200, TopicList(rows, performance=self._figures(request), next_cursor=cursor))

    def _row(self, name: str, *, touch: bool) -> TopicRow:
        topic = self._engine.topic(name)
        if touch:
            self._engine.touch(topic)
        return TopicRow(
            name,
            topic.head,
            topic.earliest,
            topic.count,
            topic.payload,
            topic.durability is Durability.FSYNC,
            self._priority(topic),
        )

    def delete(self, request: Request) -> Pending[Reply]:
        """Delete a topic and the routers that name it."""
        name = request.params[0]

        async def answer() -> Reply:
            removed = await self._server.routers.delete_topic(name, if_empty=request.flag("if_empty", False))
            return json_reply(200, TopicDeleted(name, removed is not None, removed or [], self._figures(request)))

        return run(answer())

    def _priority(self, topic: Topic) -> int:
        return effective_priority(topic.config, topic.consumed_at, self._engine.time.running())

    def _figures(self, request: Request) -> Performance:
        return Performance(since_ms(request.began_ns, self._server.clock.monotonic_ns()))
