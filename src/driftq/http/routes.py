"""Routes: which handler takes which path and method, and what a caller needs for it.

A path is a pattern of segments; one that begins with a colon takes any one segment, percent-decoded, and gives it to
the handler as `request.params`, in order.
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
    """One row of the table."""

    method: str
    path: str
    handler: Handler
    scopes: Scope = NOTHING
    guards_name: bool = False
    """Is the first parameter a name that a key's prefixes must allow?"""
    names_topics: bool = False
    """Whether its body may name topics, or its answer is about all: then it waits until none is late."""
    stream: bool = False
    """Does it answer with events? Then `Accept` must allow them, and it is no request in flight."""
    upgrade: bool = False
    """Does it go on as a WebSocket? Then it is no request in flight."""
    probe: bool = False
    """Is it answered whatever the state of the server, and to whom, is a setting?"""
    always: bool = False
    """Is it answered whatever the state of the server?"""
    form_token: bool = False
    """May the key stand in the query?"""
    knows_callers: bool = False
    """Does the handler say itself who may come in? Then `request.access` may be `STRANGER`."""
    shortcut: Callable[[Request], Shortcut | None] | None = None
    """Finds the short way of requests from full access with the head of this one, where there is one."""


class RouteMatch(NamedTuple):
    """The routes of a path, by method, and what stood in the place of its colons."""

    routes: dict[str, Route]
    params: tuple[str, ...]


Fence = Callable[[dict[str, Route], list[str]], dict[str, Route]]


class RouteTable:
    """All routes."""

    def __init__(self, routes: Iterable[Route], fence: Fence | None = None) -> None:
        """`fence` may put other routes in the place of those of a path, by what stands in the place of its colons."""
        self._fence = fence
        self._fixed: dict[str, dict[str, Route]] = {}
        self._shapes: dict[int, list[tuple[tuple[str, ...], dict[str, Route]]]] = {}
        self._remembered: dict[str, RouteMatch] = {}
        """Paths with colons that were asked for lately: most callers ask for few, and often."""
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
        """The routes of a path; a pattern with fewer colons wins by being registered first."""
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
    """A segment of a path as the name it stands for; what is no UTF-8 becomes a name that no topic can have."""
    if "%" not in part and part.isascii():
        return part
    return unquote_to_bytes(part.encode("latin-1")).decode("utf-8", "replace")
