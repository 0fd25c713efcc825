"""The handlers of groups: report their state, and move them (http-v1 §22)."""

from msgspec import Struct
from msgspec.json import Decoder

from driftq.errors import InvalidRequestError
from driftq.http.access import Scope
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v1.params import I32, I64, check_name, may_name, only_body, query_of, stripped
from driftq.http.v1.replies import json_reply
from driftq.model.names import broker_topic
from driftq.model.v1_answers import GroupList
from driftq.server import Server
from driftq.system.runtime import Pending, run


class SeekTarget(Struct, frozen=True, forbid_unknown_fields=True):
    """An offset, or a time in Unix milliseconds."""

    offset: I64 | None = None
    timestamp: I64 | None = None


class SeekBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a seek: where a group continues."""

    topic: str | None = None
    group: str | None = None
    to: str | SeekTarget | None = None
    partitions: list[I32] | None = None
    dry_run: bool | None = None
    force: bool | None = None


class GroupEndpoints:
    """Reports and moves groups: the handlers of `/v1/groups`."""

    def __init__(self, server: Server) -> None:
        self._broker = server.broker
        self._engine = server.engine
        self._body_bytes_max = server.settings.limits.body_bytes_max
        self._decoder = Decoder(SeekBody)

    def routes(self) -> list[Route]:
        """Return the routes of groups."""
        return [
            Route("GET", "/v1/groups", self.show, Scope.READ),
            Route("POST", "/v1/groups/seek", self.seek, Scope.ADMIN),
        ]

    def show(self, request: Request) -> Reply:
        """Report the state of groups."""
        query = query_of(request)
        found = self._broker.groups(stripped(query.get("topic")) or None, stripped(query.get("group")) or None)
        return json_reply(200, GroupList([one for one in found if may_name(request, one.topic)]))

    def seek(self, request: Request) -> Pending[Reply]:
        """Move the position of a group in some or all partitions."""
        given = only_body(self._decoder, request, self._body_bytes_max)
        topic, group = stripped(given.topic), stripped(given.group)
        if not (topic and group):
            raise InvalidRequestError("topic and group are required")
        check_name(request, topic)
        _check_to(given.to)
        asked = self._partitions(topic, given.partitions)

        async def answer() -> Reply:
            offset = await self._offset(topic, given.to)
            moved = await self._broker.seek(
                topic,
                group,
                dict.fromkeys(asked, offset),
                dry_run=bool(given.dry_run),
                force=bool(given.force),
            )
            return json_reply(200, {"moved": [one._asdict() for one in moved]})

        return run(answer())

    def _partitions(self, topic: str, given: list[int] | None) -> list[int]:
        count = self._broker.partitions(topic)
        if given is None:
            return list(range(count))
        if not given or not all(0 <= partition < count for partition in given):
            raise InvalidRequestError("invalid partitions")
        return sorted(set(given))

    async def _offset(self, topic: str, to: str | SeekTarget | None) -> int:
        """Return the offset of the first message that will be delivered again."""
        if to == "earliest":
            return 0
        name = broker_topic(topic)
        if isinstance(to, SeekTarget):
            # The cursor before a message equals the offset of that message.
            return await self._engine.seek(name, to.timestamp) if to.timestamp is not None else to.offset or 0
        return self._engine.topic(name).head


def _check_to(to: str | SeekTarget | None) -> None:
    if isinstance(to, SeekTarget):
        if (to.offset is None) == (to.timestamp is None) or (to.offset or 0) < 0 or (to.timestamp or 0) < 0:
            raise InvalidRequestError("invalid to")
    elif to not in ("earliest", "latest"):
        raise InvalidRequestError("invalid to")
