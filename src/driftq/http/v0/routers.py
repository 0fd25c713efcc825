"""The handlers of routers: create, change, get, list, delete (http-v0 §11.1, §11.2)."""

from msgspec import Struct
from msgspec.json import Decoder

from driftq.engine.write.deleter import parse_match
from driftq.features.router.destination import Router
from driftq.http.access import Access, Scope
from driftq.http.answer import Answer
from driftq.http.reply import Reply, json_reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v0.bodies import decode_body, since_ms
from driftq.http.v0.broker_topics import check_not_new, check_own
from driftq.http.v0.paging import Paging
from driftq.model.router_spec import Guarantee, RouterSpec
from driftq.model.v0_answers import Performance, RouterDeleted, RouterList, RouterPut, RouterRow, RouterState
from driftq.server import Server
from driftq.system.runtime import Pending, run

_ROUTER = "/v0/routers/:router"


class RouterBody(Struct):
    """The body of a PUT of a router."""

    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    create_dest: bool = True
    filter: object = None
    allow_cycle: bool = False
    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE


_BODY = Decoder(RouterBody)


class RouterEndpoints:
    """Creates, reports and deletes routers: the handlers of `/v0/routers`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._routers = server.routers
        self._body_bytes_max = server.settings.limits.body_bytes_max

    def routes(self) -> list[Route]:
        """Return the routes of routers."""
        return [
            Route("PUT", _ROUTER, self.put, Scope.ADMIN, guards_name=True, names_topics=True),
            Route("GET", _ROUTER, self.state, Scope.READ, guards_name=True),
            Route("DELETE", _ROUTER, self.delete, Scope.DELETE, guards_name=True),
            Route("GET", "/v0/routers", self.list, Scope.READ),
        ]

    def put(self, request: Request) -> Pending[Reply]:
        """Create a router, or change its configuration."""
        name = request.params[0]
        body = decode_body(_BODY, request, body_bytes_max=self._body_bytes_max)
        for topic in (body.source, body.dest):
            request.access.check_name(topic)
        check_own(body.dest)
        check_not_new(self._server.engine, body.source)
        match = None if body.filter is None else parse_match(body.filter)
        spec = RouterSpec(
            source=body.source,
            dest=body.dest,
            preserve_node=body.preserve_node,
            preserve_tag=body.preserve_tag,
            filter=None
            if match is None
            else ("tag", "Glob", match.text.decode() + "*")
            if match.is_prefix
            else ("tag", "Eq", match.text.decode()),
            allow_cycle=body.allow_cycle,
            guarantee=body.guarantee,
        )

        async def answer() -> Reply:
            created, created_ts = await self._routers.rules.put(name, spec, create_dest=body.create_dest)
            put = RouterPut(
                name,
                created,
                spec.source,
                spec.dest,
                spec.preserve_node,
                spec.preserve_tag,
                spec.filter,
                spec.allow_cycle,
                spec.guarantee,
                created_ts,
                self._figures(request),
            )
            return json_reply(201 if created else 200, put)

        return run(answer())

    def state(self, request: Request) -> Answer:
        """Report the state of a router, after it has forwarded everything that its source contains now."""
        name = request.params[0]
        self._check_topics(request.access, self._routers.get(name))
        waiting = self._routers.drained(name)
        if waiting is None:
            return self._state(request)

        async def answer() -> Reply:
            await waiting
            return self._state(request)

        return run(answer())

    def _state(self, request: Request) -> Reply:
        router = self._routers.get(request.params[0])
        spec = router.spec
        state = RouterState(
            router.name,
            spec.source,
            spec.dest,
            spec.preserve_node,
            spec.preserve_tag,
            spec.filter,
            spec.allow_cycle,
            spec.guarantee,
            router.created_ts,
            router.forwarded,
            self._figures(request),
        )
        return json_reply(200, state)

    def list(self, request: Request) -> Reply:
        """List one page of the routers that the key may see."""
        access, source, dest = request.access, request.argument("source"), request.argument("dest")

        def shown(name: str) -> bool:
            spec = self._routers.get(name).spec
            return (
                (not source or spec.source == source)
                and (not dest or spec.dest == dest)
                and all(map(access.may_name, (name, spec.source, spec.dest)))
            )

        names, cursor = Paging.of(request).cut(self._routers.names(), shown)
        routers = [self._routers.get(name) for name in names]
        rows = [
            RouterRow(router.name, router.spec.source, router.spec.dest, router.spec.guarantee, router.forwarded)
            for router in routers
        ]
        return json_reply(200, RouterList(rows, performance=self._figures(request), next_cursor=cursor))

    def delete(self, request: Request) -> Pending[Reply]:
        """Delete a router; the records that it copied stay."""
        name = request.params[0]
        if name in self._routers:
            self._check_topics(request.access, self._routers.get(name))

        async def answer() -> Reply:
            deleted = await self._routers.rules.delete(name)
            return json_reply(200, RouterDeleted(name, deleted, self._figures(request)))

        return run(answer())

    def _check_topics(self, access: Access, router: Router) -> None:
        for topic in (router.spec.source, router.spec.dest):
            access.check_name(topic)

    def _figures(self, request: Request) -> Performance:
        return Performance(since_ms(request.began_ns, self._server.clock.monotonic_ns()))
