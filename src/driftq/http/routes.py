"""The route table: which handler serves which path and method, and what the caller needs for it.

A path is a pattern of segments. A segment that begins with a colon matches any non-empty segment; its percent-decoded
value is passed to the handler in `request.params`, in order.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from driftq.http.access import NOTHING, Scope
from driftq.http.answer import Answer, Shortcut
from driftq.http.request import Request

Handler = Callable[[Request], Answer]

ANY = ":"
_REMEMBERED_MAX = 4096


class Route(NamedTuple):
    """One handler with its method, its path and the conditions for calling it."""

    method: str
    path: str
    handler: Handler
    scopes: Scope = NOTHING
    guards_name: bool = False
    """Whether the first parameter is a name that the key's prefixes must allow."""
    names_topics: bool = False
    """Whether its body may name topics, or its answer covers all topics: then it waits until every topic is loaded."""
    stream: bool = False
    """Whether it answers with events: then `Accept` must allow them, and the request does not count as in flight."""
    upgrade: bool = False
    """Whether it continues as a WebSocket: then the request does not count as in flight."""
    probe: bool = False
    """Whether it is answered in every state of the server. The setting `probe_auth` decides whether it needs a key."""
    always: bool = False
    """Whether it is answered in every state of the server; it needs a key like other routes."""
    form_token: bool = False
    """Whether the key may be given in the query."""
    knows_callers: bool = False
    """Whether the handler itself decides which callers to accept: then `request.access` may be `STRANGER`."""
    shortcut: Callable[[Request], Shortcut | None] | None = None
    """Returns the short path for requests with full access and the head of the given request, or None."""


class RouteMatch(NamedTuple):
    """The routes of a path, by method, and the values of the segments that its colons matched."""

    routes: dict[str, Route]
    params: tuple[str, ...]


Fence = Callable[[dict[str, Route], list[str]], dict[str, Route]]


class RouteTable:
    """All routes of an app, found by path."""

    def __init__(self, routes: Iterable[Route], fence: Fence | None = None) -> None:
        """Build the table; `fence` may replace the routes of a matched path, given the values of its parameters."""
        self._fence = fence
        self._fixed: dict[str, dict[str, Route]] = {}
        self._shapes: dict[int, list[tuple[tuple[str, ...], dict[str, Route]]]] = {}
        self._remembered: dict[str, RouteMatch] = {}
        """Recently requested paths with parameters: most callers repeat a few paths often."""
        for route in routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        if ANY not in route.path:
            self._fixed.setdefault(route.path, {})[route.method] = route
            return
        shape = tuple(ANY if part.startswith(ANY) else part for part in route.path.split("/"))
        shapes = self._shapes.setdefault(len(shape), [])
        for known, methods in shapes:
            if known == shape:
                methods[route.method] = route
                return
        shapes.append((shape, {route.method: route}))

    def find(self, path: str) -> RouteMatch | None:
        """Return the routes of a path, or None. Of several patterns that match, the first registered wins."""
        remembered = self._remembered.get(path)
        if remembered is not None:
            return remembered
        fixed = self._fixed.get(path)
        if fixed is not None:
            return RouteMatch(fixed, ())
        parts = path.split("/")
        for shape, methods in self._shapes.get(len(parts), ()):
            params = []
            for wanted, part in zip(shape, parts, strict=True):
                if wanted == ANY and part:
                    params.append(decoded(part))
                elif wanted != part:
                    break
            else:
                found = RouteMatch(methods if self._fence is None else self._fence(methods, params), tuple(params))
                if len(self._remembered) >= _REMEMBERED_MAX:
                    self._remembered.clear()
                self._remembered[path] = found
                return found
        return None


def decoded(part: str) -> str:
    """Return a path segment percent-decoded; invalid UTF-8 becomes a name that no topic can have."""
    if "%" not in part and part.isascii():
        return part
    return unquote_to_bytes(part.encode("latin-1")).decode("utf-8", "replace")
