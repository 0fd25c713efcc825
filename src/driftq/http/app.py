"""The app: passes each request to its handler and turns errors into replies.

The order of checks is http-v0 §1.7: whether the caller may make the request (`http/gate`), whether path and method
exist, whether the caller accepts the answer's type. Then the handler checks the body. A handler returns its answer, or
a `Pending` if it has to wait for a commit. A `DriftQError` becomes its error envelope. Any other exception is a bug: it
is logged with its traceback, and the caller gets only `500 internal`.
"""

from driftq.errors import NotAcceptableError
from driftq.http.answer import Answer, Promise, Shortcut, promised
from driftq.http.gate import Gate
from driftq.http.keys import ApiKeys
from driftq.http.metrics.server_metrics import MetricsEndpoint
from driftq.http.openapi.v0_operations import OpenApi
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.routes import Route, RouteMatch, RouteTable
from driftq.http.v0.backups import BackupEndpoints
from driftq.http.v0.broker_topics import fence_of
from driftq.http.v0.cursors import Cursors
from driftq.http.v0.errors import failed_reply, refusal
from driftq.http.v0.probes import ProbeEndpoints
from driftq.http.v0.queues import QueueEndpoints
from driftq.http.v0.records.many_reads import ManyReads
from driftq.http.v0.records.records import Records
from driftq.http.v0.routers import RouterEndpoints
from driftq.http.v0.segments import Segments
from driftq.http.v0.staging import StagedWrites
from driftq.http.v0.streams.job_stream import JobStreamEndpoint
from driftq.http.v0.streams.watch_sessions import Watches
from driftq.http.v0.streams.websocket_session import Sockets
from driftq.http.v0.topics import TopicEndpoints
from driftq.http.v1.broker_api import BrokerApi
from driftq.server import Server
from driftq.system.runtime import Pending, run

_EVENTS = b"text/event-stream"
_ROOT = "/v0/"


class App:
    """The `/v0` handlers of one server, and the broker (`/v1`) for all other paths."""

    def __init__(self, server: Server, keys: ApiKeys | None = None) -> None:
        self._server = server
        keys = keys or ApiKeys()
        self._gate = Gate(server, keys, open_probes=not server.settings.probe_auth)
        self._now_ns = server.clock.monotonic_ns
        # The short path builds no Request, so it can neither check a key nor write an access log line.
        self._short = not keys and server.settings.short_writes and not server.settings.access_log
        self.routes = [
            *ProbeEndpoints(server).routes(),
            *MetricsEndpoint(server).routes(),
            *OpenApi().routes(),
            *TopicEndpoints(server).routes(),
            *Records(server).routes(),
            *Segments(server).routes(),
            *ManyReads(server).routes(),
            *Cursors(server).routes(),
            *StagedWrites(server).routes(),
            *Watches(server).routes(),
            *Sockets(server).routes(),
            *QueueEndpoints(server).routes(),
            *JobStreamEndpoint(server).routes(),
            *RouterEndpoints(server).routes(),
            *BackupEndpoints(server).routes(),
        ]
        self._table = RouteTable(self.routes, fence_of(server.engine))
        self._own = {_first_segment(route.path) for route in self.routes}
        """First segments of the paths of this API; every other path goes to the broker, even an unknown one."""
        self.broker = BrokerApi(server, keys)

    def handle(self, request: Request) -> Answer:
        """Return the answer to a request, or a promise of it. Never raises."""
        request.began_ns = self._now_ns()
        if not request.path.startswith(_ROOT) and _first_segment(request.path) not in self._own:
            return self.broker.handle(request)
        try:
            answer = self._answer(request)
        except Exception as error:  # noqa: BLE001  # a bug in one handler ends one request, not the server
            return failed_reply(request, error)
        if isinstance(answer, Promise) or not isinstance(answer, Pending):
            return answer
        return promised(answer, lambda done: done.result() if done.error is None else failed_reply(request, done.error))

    def shortcut(self, request: Request) -> Shortcut | None:
        """Return the short path for request bodies with the same head as this request, or None if there is none."""
        found = self._table.find(request.path) if self._short else None
        route = None if found is None else found.routes.get(request.method)
        if found is None or route is None or route.shortcut is None:
            return None
        request.params = found.params
        return route.shortcut(request)

    def _answer(self, request: Request) -> Answer:
        found = self._table.find(request.path)
        # A path that accepts GET accepts HEAD too; the connection leaves out the body.
        method = request.method
        route = None if found is None else found.routes.get("GET" if method == "HEAD" else method)
        return self._gate.answer(request, route, found, self._handled)

    def _handled(self, request: Request, route: Route | None, found: RouteMatch | None) -> Answer:
        """Call the handler; first wait for the topics that it needs, if their records are still being loaded.

        A stream or WebSocket does not wait: its first use of a topic that is not loaded loads all of them at once.
        """
        if found is None:
            return refusal("not_found", f"no such path: {request.path[:200]}")
        if route is None:
            return _not_allowed(request, found)
        if route.stream:
            _check_accept(request)
        request.params = found.params
        engine = self._server.engine
        if not engine.loading.open or route.stream or route.upgrade:
            return route.handler(request)
        if route.names_topics:
            return run(_after(engine.loading.wait_for_all(), request, route))
        if not request.params:
            return route.handler(request)
        loading = engine.loading_of(request.params[0])
        return route.handler(request) if loading is None else run(_after(loading, request, route))


async def _after(loading: Pending[None], request: Request, route: Route) -> Reply:
    """Return the answer of the handler, called when the records are loaded."""
    await loading
    answer = route.handler(request)
    if isinstance(answer, Pending):
        return await answer
    assert isinstance(answer, Reply), "streams do not wait"
    return answer


def _first_segment(path: str) -> str:
    return path.split("/", 2)[1] if path.startswith("/") else ""


def _check_accept(request: Request) -> None:
    accept = request.header(b"accept")
    if accept and _EVENTS not in accept and b"*/*" not in accept:
        raise NotAcceptableError("this path answers with text/event-stream; the Accept header must allow it")


def _not_allowed(request: Request, found: RouteMatch) -> Reply:
    allowed = ", ".join([*found.routes, *(["HEAD"] if "GET" in found.routes else [])])
    message = f"{request.path} does not support {request.method}; allowed: {allowed}"
    return refusal("method_not_allowed", message, (b"allow", allowed.encode()))
