"""The handlers of `/v1/topics` (http-v1 §3.3, §3.4)."""

from msgspec import Struct
from msgspec.json import Decoder

from driftq.errors import InvalidRequestError
from driftq.http.access import Scope
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v1.params import I32, body_of, check_name, may_name, query_of, stripped, whole_number
from driftq.http.v1.replies import json_reply
from driftq.server import Server
from driftq.system.runtime import Pending

NAME_BYTES_MAX = 255

_SPACE, _DELETE = " ", "\x7f"


class TopicBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a topic's creation."""

    name: str | None = None
    partitions: I32 | None = None


class BrokerTopicEndpoints:
    """Lists and creates topics: the handlers of `/v1/topics`."""

    def __init__(self, server: Server) -> None:
        self._broker = server.broker
        self._body_bytes_max = server.settings.limits.body_bytes_max
        self._partitions_max = server.settings.broker.partitions_max
        self._decoder = Decoder(TopicBody)

    def routes(self) -> list[Route]:
        """Return the routes of topics."""
        return [
            Route("GET", "/v1/topics", self.list, Scope.READ),
            Route("POST", "/v1/topics", self.create, Scope.ADMIN),
        ]

    def list(self, request: Request) -> Reply:
        """List every topic that the key may see."""
        return json_reply(200, {"topics": [name for name in self._broker.topics() if may_name(request, name)]})

    def create(self, request: Request) -> Pending[Reply]:
        """Create a topic, unless it exists."""
        given = body_of(self._decoder, request, self._body_bytes_max)
        if given is None:
            query = query_of(request)
            name = _required(query.get("name"))
            partitions = whole_number(query, "partitions", 0, self._partitions_max)
        else:
            name = _required(given.name)
            partitions = given.partitions
        if partitions is not None and not 0 <= partitions <= self._partitions_max:
            raise InvalidRequestError("invalid partitions")
        check_name(request, name)
        return self._broker.create_topic(name, partitions or 1).mapped(
            lambda count: json_reply(201, {"status": "created", "name": name, "partitions": count})
        )


def _required(given: str | None) -> str:
    name = stripped(given)
    if not name:
        raise InvalidRequestError("name is required")
    if len(name.encode()) > NAME_BYTES_MAX or any(char < _SPACE or char == _DELETE for char in name):
        raise InvalidRequestError("invalid name")
    return name
