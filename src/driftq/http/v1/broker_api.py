"""Passes requests of the broker API, and requests for unknown paths, to their handlers (http-v1 §1.3).

The order of checks is the same as for `/v0`: the state of the server, the caller's key, the caller's limit of requests
in flight, the caller's rights, then path and method. The handler checks the body.
"""

from driftq.errors import UnauthorizedError
from driftq.http.access import FULL, Access
from driftq.http.answer import Answer
from driftq.http.keys import ApiKeys
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.routes import Route, RouteMatch, RouteTable
from driftq.http.v1.broker_metrics import BrokerMetricsEndpoint
from driftq.http.v1.errors import failed_reply, refusal
from driftq.http.v1.groups import GroupEndpoints
from driftq.http.v1.idempotency import IdempotencyEndpoints
from driftq.http.v1.messages.consume import ConsumeEndpoint
from driftq.http.v1.messages.produce import Producing
from driftq.http.v1.messages.produce_batch import BatchEndpoint
from driftq.http.v1.messages.settlement import Settling
from driftq.http.v1.messages.settlement_batch import SettlingBatches
from driftq.http.v1.probes import BrokerProbeEndpoints
from driftq.http.v1.redrive import Redrive
from driftq.http.v1.replies import finished
from driftq.http.v1.runs import RunEndpoint
from driftq.http.v1.topics import BrokerTopicEndpoints
from driftq.server import Server
from driftq.system.runtime import Pending

_ROOT = "/v1"


class BrokerApi:
    """The `/v1` handlers of one server."""

    def __init__(self, server: Server, keys: ApiKeys) -> None:
        self._server = server
        self._keys = keys
        self._open = not keys
        self.routes = [
            *BrokerProbeEndpoints(server).routes(),
            *BrokerTopicEndpoints(server).routes(),
            *Producing(server).routes(),
            *BatchEndpoint(server).routes(),
            *ConsumeEndpoint(server).routes(),
            *Settling(server).routes(),
            *SettlingBatches(server).routes(),
            *GroupEndpoints(server).routes(),
            *IdempotencyEndpoints(server).routes(),
            *RunEndpoint(server).routes(),
            *Redrive(server).routes(),
            *BrokerMetricsEndpoint(server).routes(),
        ]
        self._table = RouteTable(self.routes)

    def handle(self, request: Request) -> Answer:
        """Return the answer to a request, or a promise of it. Never raises."""
        try:
            answer = self._answer(request)
        except Exception as error:  # noqa: BLE001  # a bug in one handler ends one request, not the server
            answer = failed_reply(request, error)
        return finished(request, answer)

    def _answer(self, request: Request) -> Answer:
        found = self._table.find(request.path)
        route = None if found is None else found.routes.get(request.method)
        if route is not None and route.probe:
            return route.handler(request)
        self._server.check_ready()
        if self._open:
            return _routed(request, route, found)
        request.access = self._admit(request)
        if route is not None and route.stream:
            return _routed(request, route, found)
        return self._counted(request, route, found)

    def _admit(self, request: Request) -> Access:
        """Return the rights of the caller. Raise UnauthorizedError if the key is missing or unknown."""
        access = self._keys.who(request, form_token=False)
        if access is None:
            raise UnauthorizedError("missing or unknown API key; send `Authorization: Bearer <key>`")
        return access

    def _counted(self, request: Request, route: Route | None, found: RouteMatch | None) -> Answer:
        """Return the answer to a request with a key; it counts as in flight until its answer is ready."""
        slot = self._server.admission.take_request(request.access.key_id)
        try:
            answer = _routed(request, route, found)
        except BaseException:
            slot.release()
            raise
        if isinstance(answer, Pending):
            answer.then(lambda _: slot.release())
        else:
            slot.release()
        return answer


def _routed(request: Request, route: Route | None, found: RouteMatch | None) -> Answer:
    if found is None:
        return nowhere(request.path)
    if route is None:
        return refusal(405, "method not allowed", (b"allow", ", ".join(found.routes).encode()))
    if request.access is not FULL:
        request.access.check(route.scopes)
    request.params = found.params
    return route.handler(request)


def nowhere(path: str) -> Reply:
    """Return the 404 for an unknown path; the text is fixed by the contract."""
    known = path == _ROOT or path.startswith(_ROOT + "/")
    return refusal(404, "not found" if known else "use /v1/* endpoints")
