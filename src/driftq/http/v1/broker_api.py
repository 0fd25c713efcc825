"""Passes requests of the broker API, and requests for unknown paths, to their handlers (http-v1 §1.3).

The order of checks is the same as for `/v0`: whether the caller may make the request (`http/gate`), then path and
method. The handler checks the body.
"""

from driftq.http.answer import Answer
from driftq.http.gate import Gate
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

_ROOT = "/v1"


class BrokerApi:
    """The `/v1` handlers of one server."""

    def __init__(self, server: Server, keys: ApiKeys) -> None:
        self._gate = Gate(server, keys, open_probes=True)
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
        return self._gate.answer(request, route, found, _handled)


def _handled(request: Request, route: Route | None, found: RouteMatch | None) -> Answer:
    if found is None:
        return nowhere(request.path)
    if route is None:
        return refusal(405, "method not allowed", (b"allow", ", ".join(found.routes).encode()))
    request.params = found.params
    return route.handler(request)


def nowhere(path: str) -> Reply:
    """Return the 404 for an unknown path; the text is fixed by the contract."""
    known = path == _ROOT or path.startswith(_ROOT + "/")
    return refusal(404, "not found" if known else "use /v1/* endpoints")
