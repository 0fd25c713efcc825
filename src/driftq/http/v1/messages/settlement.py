"""Ack, nack and extend (http-v1 §3.7, §3.8, §22): makes the first five checks, in the contract's order."""

from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.json import Decoder

from driftq.errors import InvalidRequestError
from driftq.features.broker.protocols import DeliveryKey
from driftq.http.access import Scope
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v1.params import (
    I32_MAX,
    I64_MAX,
    Query,
    body_of,
    check_name,
    only_body,
    query_of,
    stripped,
    whole_number,
)
from driftq.http.v1.replies import NO_CONTENT, json_reply
from driftq.server import Server
from driftq.system.runtime import Pending


class AckBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an ack. Numbers are `Any`, because the contract wants an error that names the wrong field."""

    topic: str | None = None
    group: str | None = None
    owner: str | None = None
    partition: Any = None
    offset: Any = None


class MessageNackBody(AckBody, frozen=True, forbid_unknown_fields=True):
    """The body of a nack: the reason, and a delay, or a request to dead-letter the message."""

    reason: str | None = None
    delay_ms: Any = None
    dead_letter: bool | None = None


class MessageExtendBody(AckBody, frozen=True, forbid_unknown_fields=True):
    """The body of an extend."""

    lease_ms: Any = None


class _Asked(NamedTuple):
    place: DeliveryKey
    owner: str


class Settling:
    """The handlers of ack, nack and extend."""

    def __init__(self, server: Server) -> None:
        self._broker = server.broker
        self._body_bytes_max = server.settings.limits.body_bytes_max
        self._acks = Decoder(AckBody)
        self._nacks = Decoder(MessageNackBody)
        self._extends = Decoder(MessageExtendBody)

    def routes(self) -> list[Route]:
        """Return the routes of ack, nack and extend."""
        return [
            Route("POST", "/v1/ack", self.ack, Scope.WRITE),
            Route("POST", "/v1/nack", self.nack, Scope.WRITE),
            Route("POST", "/v1/extend", self.extend, Scope.WRITE),
        ]

    def ack(self, request: Request) -> Pending[Reply]:
        """Mark a message as done for a group."""
        given = body_of(self._acks, request, self._body_bytes_max)
        asked = _asked(request, _of_query(query_of(request)) if given is None else given)
        return self._broker.ack(*asked).mapped(lambda _: NO_CONTENT)

    def nack(self, request: Request) -> Pending[Reply]:
        """Report that a message failed: it is retried or dead-lettered."""
        given = body_of(self._nacks, request, self._body_bytes_max)
        if given is None:
            query = query_of(request)
            asked = _asked(request, _of_query(query))
            reason = stripped(query.get("reason")) or stripped(query.get("error"))
            delay_ms = whole_number(query, "delay_ms", 0, I64_MAX)
            dead_letter = query.get("dead_letter") == "true"
        else:
            asked, reason = _asked(request, given), stripped(given.reason)
            delay_ms, dead_letter = checked_delay(given.delay_ms), bool(given.dead_letter)
        failed = self._broker.nack(*asked, reason, delay_ms=delay_ms, dead_letter=dead_letter)
        return failed.mapped(lambda _: NO_CONTENT)

    def extend(self, request: Request) -> Reply:
        """Extend the lease of a message."""
        given = only_body(self._extends, request, self._body_bytes_max)
        asked = _asked(request, given)
        deadline_ms = self._broker.extend(*asked, checked_lease(given.lease_ms))
        return json_reply(200, {"deadline_ms": deadline_ms})


def _of_query(query: Query) -> AckBody:
    if not stripped(query.get("partition")) or not stripped(query.get("offset")):
        raise InvalidRequestError("partition and offset are required")
    return AckBody(
        query.get("topic"),
        query.get("group"),
        query.get("owner"),
        whole_number(query, "partition", -I32_MAX - 1, I32_MAX),
        whole_number(query, "offset", -I64_MAX - 1, I64_MAX),
    )


def checked_delay(delay_ms: object) -> int | None:
    """Return the delay of a nack in ms. Raise InvalidRequestError if it is invalid."""
    if delay_ms is None:
        return None
    if type(delay_ms) is not int or not 0 <= delay_ms <= I64_MAX:
        raise InvalidRequestError("invalid delay_ms")
    return delay_ms


def checked_lease(lease_ms: object) -> int:
    """Return the lease of an extend in ms. Raise InvalidRequestError if it is invalid."""
    if type(lease_ms) is not int or not 0 < lease_ms <= I64_MAX:
        raise InvalidRequestError("invalid lease_ms")
    return lease_ms


def checked_numbers(partition: object, offset: object) -> tuple[int, int]:
    """Return partition and offset, which may still be negative. Raise InvalidRequestError if one is not a number."""
    if partition is None or offset is None:
        raise InvalidRequestError("partition and offset are required")
    if type(partition) is not int or not -I32_MAX - 1 <= partition <= I32_MAX:
        raise InvalidRequestError("invalid partition")
    if type(offset) is not int or not -I64_MAX - 1 <= offset <= I64_MAX:
        raise InvalidRequestError("invalid offset")
    return partition, offset


def checked_names(topic: str | None, group: str | None, owner: str | None) -> tuple[str, str, str]:
    """Return the names without white space around them. Raise InvalidRequestError if one is missing."""
    names = stripped(topic), stripped(group), stripped(owner)
    if not all(names):
        raise InvalidRequestError("topic, group, and owner are required")
    return names


def checked_place(topic: str, group: str, partition: int, offset: int) -> DeliveryKey:
    """Return the key of a delivery. Raise InvalidRequestError if a number is negative."""
    if partition < 0:
        raise InvalidRequestError("partition cannot be negative")
    if offset < 0:
        raise InvalidRequestError("offset cannot be negative")
    return DeliveryKey(topic, group, partition, offset)


def _asked(request: Request, given: AckBody) -> _Asked:
    """Return the delivery that the request means, and its owner. Raises InvalidRequestError or ForbiddenError."""
    numbers = checked_numbers(given.partition, given.offset)
    topic, group, owner = checked_names(given.topic, given.group, given.owner)
    place = checked_place(topic, group, *numbers)
    check_name(request, topic)
    return _Asked(place, owner)
