"""Topics of the broker: `/v0` can read them and cannot change them (http-v1 §18.1)."""

from driftq.engine.engine import Engine
from driftq.errors import InvalidRequestError, ReadOnlyError
from driftq.http.access import Scope
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.routes import Fence, Route
from driftq.model.names import BROKER_MARK, broker_topic, is_broker_topic, is_stored_name
from driftq.model.topic_config import TopicConfig

_CHANGES = Scope.WRITE | Scope.DELETE | Scope.ADMIN
_TOPIC = "/v0/topics/:topic"
_CURSORS = f"{_TOPIC}/cursors/"


def check_own(name: str) -> None:
    """Refuse to change a topic of the broker. Raises ReadOnlyError."""
    if is_broker_topic(name):
        raise ReadOnlyError(name)


def check_inline(engine: Engine, name: str, config: TopicConfig) -> None:
    """Refuse a write that would create a queue whose dead letters go to a broker topic. Raises ReadOnlyError."""
    if config.dead_letter is not None and engine.would_create(name):
        check_own(config.dead_letter)


def check_not_new(engine: Engine, name: str) -> None:
    """Refuse to create a topic with the name of a broker topic. Raises InvalidRequestError."""
    if is_broker_topic(name) and engine.catalog.find(name) is None:
        message = f"a topic name that begins with {BROKER_MARK} belongs to the broker; create it through /v1"
        raise InvalidRequestError(message, detail={"topic": name})


def fence_of(engine: Engine) -> Fence:
    """Return the fence that replaces every handler that changes a broker topic by a refusal.

    A path is percent-decoded once before it gets here. So `/v0/topics/@a%20b`, with the stored name pasted as it is,
    arrives as `@a b`, and the fence encodes it again.
    """

    def refuse(request: Request) -> Reply:
        name = request.params[0]
        if request.method in ("PUT", "PATCH"):
            check_not_new(engine, name)
        raise ReadOnlyError(name)

    def fence(routes: dict[str, Route], params: list[str]) -> dict[str, Route]:
        if not is_broker_topic(params[0]):
            return routes
        if not is_stored_name(params[0]):
            params[0] = broker_topic(params[0].removeprefix(BROKER_MARK))
        fenced = {method: route._replace(handler=refuse) for method, route in routes.items() if _changes(route)}
        return routes | fenced

    return fence


def _changes(route: Route) -> bool:
    """Whether a route changes the topic that it names. A reader's cursor is not a part of the topic."""
    if not route.path.startswith(_TOPIC) or route.path.startswith(_CURSORS):
        return False
    return bool(route.scopes & _CHANGES)
