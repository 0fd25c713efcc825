"""Topics of the other API, which can be read through this one and no more (http-v1 §18.1)."""

from driftq.engine.engine import Engine
from driftq.errors import InvalidRequestError, ReadOnlyError
from driftq.http.access import Scope
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.routes import Fence, Route
from driftq.model.topic import TopicConfig

PREFIX = "v1:"

_CHANGES = Scope.WRITE | Scope.DELETE | Scope.ADMIN
_TOPIC = "/v0/topics/:topic"
_CURSORS = f"{_TOPIC}/cursors/"


def is_foreign(name: str) -> bool:
    """Is this a name of the other API?"""
    return name.startswith(PREFIX)


def check_own(name: str) -> None:
    """Refuse a name of the other API as something to write to. Raises ReadOnlyError."""
    if is_foreign(name):
        raise ReadOnlyError(name)


def check_inline(engine: Engine, name: str, config: TopicConfig) -> None:
    """Refuse a write that would make a queue whose dead letters go to the other API. Raises ReadOnlyError."""
    if config.dead_letter is not None and engine.would_create(name):
        check_own(config.dead_letter)


def check_not_new(engine: Engine, name: str) -> None:
    """Refuse to let a topic with such a name come into being here. Raises InvalidRequestError."""
    if is_foreign(name) and engine.catalog.find(name) is None:
        message = f"names that begin with {PREFIX} are those of the other API"
        raise InvalidRequestError(message, detail={"topic": name})


def fence_of(engine: Engine) -> Fence:
    """What keeps such topics from being changed: paths that name one have these handlers."""

    def refuse(request: Request) -> Reply:
        name = request.params[0]
        if request.method == "PUT":
            check_not_new(engine, name)
        raise ReadOnlyError(name)

    def fence(routes: dict[str, Route], params: list[str]) -> dict[str, Route]:
        if not is_foreign(params[0]):
            return routes
        fenced = {method: route._replace(handler=refuse) for method, route in routes.items() if _changes(route)}
        return routes | fenced

    return fence


def _changes(route: Route) -> bool:
    """Does a route change the topic that it names? A reader's cursor is no part of it."""
    if not route.path.startswith(_TOPIC) or route.path.startswith(_CURSORS):
        return False
    return bool(route.scopes & _CHANGES)
