"""Decides whether a caller may make a request: for `/v0`, for `/v1`, and while the server starts (http-v0 §1.7).

The order of checks is the state of the server, the caller's key, the caller's limit of requests in flight, the caller's
rights. Each API turns a refusal, which is a `DriftQError`, into an answer in its own form; it checks path and method
after these.
"""

from collections.abc import Callable

from driftq.errors import ForbiddenError, UnauthorizedError
from driftq.http.access import STRANGER, Access, Scope
from driftq.http.answer import Answer
from driftq.http.keys import ApiKeys
from driftq.http.request import Request
from driftq.http.routes import Route, RouteMatch, decoded
from driftq.server import Server
from driftq.system.runtime import Pending

Handle = Callable[[Request, Route | None, RouteMatch | None], Answer]

_TOPICS = "/v0/topics/"


class Gate:
    """The checks that come before the handler of a request."""

    def __init__(self, server: Server, keys: ApiKeys, *, open_probes: bool) -> None:
        """Keep the keys; `open_probes` is whether probes need no key."""
        self._server = server
        self._keys = keys
        self._open = not keys
        self._open_probes = open_probes

    def answer(self, request: Request, route: Route | None, found: RouteMatch | None, handle: Handle) -> Answer:
        """Return the answer of `handle` if the caller may make this request; else raise the refusal."""
        if route is None or not (route.probe or route.always):
            self._server.check_ready()
        if self._open or (self._open_probes and route is not None and route.probe):
            return handle(request, route, found)
        request.access = self._access_of(request, route)
        if route is not None and (route.stream or route.upgrade):
            _check_access(request, route, found)
            return handle(request, route, found)
        return self._counted(request, route, found, handle)

    def _access_of(self, request: Request, route: Route | None) -> Access:
        """Return the rights of the caller. Raise UnauthorizedError if the key is missing or unknown."""
        access = self._keys.who(request, form_token=route is not None and route.form_token)
        if access is not None:
            return access
        if route is not None and route.knows_callers:
            return STRANGER
        raise UnauthorizedError("missing or unknown API key; send `Authorization: Bearer <key>`")

    def _counted(self, request: Request, route: Route | None, found: RouteMatch | None, handle: Handle) -> Answer:
        """Return the answer to a request with a key; it counts as in flight until its answer is ready."""
        slot = self._server.admission.take_request(request.access.key_id)
        try:
            _check_access(request, route, found)
            answer = handle(request, route, found)
        except BaseException:
            slot.release()
            raise
        if isinstance(answer, Pending):
            answer.then(lambda _: slot.release())
        else:
            slot.release()
        return answer


def _check_access(request: Request, route: Route | None, found: RouteMatch | None) -> None:
    """Check the scopes, then the name in the path. Raise ForbiddenError if the key lacks one of them.

    An unknown path below a topic needs the scope for writing, so its error reveals nothing to a key without that scope.
    """
    access = request.access
    below_topic = found is None and request.path.startswith(_TOPICS)
    if route is not None:
        access.check(route.scopes)
    elif below_topic:
        access.check(Scope.WRITE)
    if below_topic:
        name = decoded(request.path[len(_TOPICS) :].partition("/")[0])
    elif found is not None and any(known.guards_name for known in found.routes.values()):
        name = found.params[0]
    else:
        return
    if not access.may_name(name):
        raise ForbiddenError("this key may not use that name")
