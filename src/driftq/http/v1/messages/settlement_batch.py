"""Ack, nack, extend and release of many messages of a group in one call (http-v1 §22).

A worker that stops uses `release` to return deliveries that it has not worked on.
"""

from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.json import Decoder

from driftq.errors import InvalidRequestError
from driftq.features.broker.protocols import DeliveryKey
from driftq.http.access import Scope
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v1.messages.batch_entries import answer_all, answered, given_entries
from driftq.http.v1.messages.settlement import (
    checked_delay,
    checked_lease,
    checked_names,
    checked_numbers,
    checked_place,
)
from driftq.http.v1.params import I32_MAX, I64_MAX, check_name, only_body, stripped
from driftq.server import Server
from driftq.system.runtime import Pending

_DONE: dict[str, object] = {"code": 204}


def _settled(_: None) -> dict[str, object]:
    return _DONE


class MessageEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One message. Its numbers are `Any`, because an error in them is the result of this entry only."""

    partition: Any = None
    offset: Any = None


class NackEntry(MessageEntry, frozen=True, forbid_unknown_fields=True):
    """One failed message: the reason, and a delay, or a request to dead-letter it."""

    reason: str | None = None
    delay_ms: Any = None
    dead_letter: bool | None = None


class _Shared(Struct, frozen=True, forbid_unknown_fields=True):
    topic: str | None = None
    group: str | None = None
    owner: str | None = None


class AckBatch(_Shared, frozen=True, forbid_unknown_fields=True):
    """The body of an ack or a release: messages of one group that one owner holds."""

    entries: list[MessageEntry] | None = None


class NackBatch(_Shared, frozen=True, forbid_unknown_fields=True):
    """The body of a nack: failed messages of one group that one owner holds."""

    entries: list[NackEntry] | None = None


class ExtendBatch(_Shared, frozen=True, forbid_unknown_fields=True):
    """The body of an extend: all messages get the same lease."""

    lease_ms: Any = None
    entries: list[MessageEntry] | None = None


class _Holder(NamedTuple):
    """The owner of the messages of a call, with topic and group."""

    topic: str
    group: str
    owner: str

    def place(self, entry: MessageEntry) -> DeliveryKey:
        """Return the delivery key of an entry. Raise InvalidRequestError if its numbers are invalid."""
        return checked_place(self.topic, self.group, *checked_numbers(entry.partition, entry.offset))

    def found(self, entry: MessageEntry) -> tuple[int, int] | InvalidRequestError:
        """Return partition and offset of an entry, or the error in them."""
        partition, offset = entry.partition, entry.offset
        if type(partition) is int and type(offset) is int and 0 <= partition <= I32_MAX and 0 <= offset <= I64_MAX:
            return partition, offset
        try:
            place = self.place(entry)
        except InvalidRequestError as error:
            return error
        return place.partition, place.offset


class SettlingBatches:
    """The handlers of the batch forms."""

    def __init__(self, server: Server) -> None:
        self._broker = server.broker
        self._body_bytes_max = server.settings.limits.body_bytes_max
        self._acks = Decoder(AckBatch)
        self._nacks = Decoder(NackBatch)
        self._extends = Decoder(ExtendBatch)

    def routes(self) -> list[Route]:
        """Return the batch routes of ack, nack, extend and release."""
        return [
            Route("POST", "/v1/ack/batch", self.ack, Scope.WRITE),
            Route("POST", "/v1/nack/batch", self.nack, Scope.WRITE),
            Route("POST", "/v1/extend/batch", self.extend, Scope.WRITE),
            Route("POST", "/v1/release/batch", self.release, Scope.WRITE),
        ]

    def ack(self, request: Request) -> Pending[Reply]:
        """Mark messages as done for a group."""
        given = only_body(self._acks, request, self._body_bytes_max)
        holder, entries = self._holder(request, given), given_entries(given.entries)
        found = [holder.found(entry) for entry in entries]
        messages = [one for one in found if isinstance(one, tuple)]
        acked = iter(self._broker.ack_all(*holder, messages))
        return answer_all(request, [next(acked) if isinstance(one, tuple) else one for one in found], _settled)

    def release(self, request: Request) -> Pending[Reply]:
        """Return messages that were not worked on to the group."""
        given = only_body(self._acks, request, self._body_bytes_max)
        holder, release = self._holder(request, given), self._broker.release
        return answered(
            request, given_entries(given.entries), lambda one: release(holder.place(one), holder.owner), _settled
        )

    def nack(self, request: Request) -> Pending[Reply]:
        """Report that messages failed: each is retried or dead-lettered."""
        given = only_body(self._nacks, request, self._body_bytes_max)
        holder, broker = self._holder(request, given), self._broker

        def nack(entry: NackEntry) -> Pending[None]:
            place, delay_ms = holder.place(entry), checked_delay(entry.delay_ms)
            dead_letter = bool(entry.dead_letter)
            return broker.nack(place, holder.owner, stripped(entry.reason), delay_ms=delay_ms, dead_letter=dead_letter)

        return answered(request, given_entries(given.entries), nack, _settled)

    def extend(self, request: Request) -> Pending[Reply]:
        """Extend the leases of messages."""
        given = only_body(self._extends, request, self._body_bytes_max)
        holder, extend = self._holder(request, given), self._broker.extend
        lease_ms = checked_lease(given.lease_ms)
        return answered(
            request,
            given_entries(given.entries),
            lambda one: extend(holder.place(one), holder.owner, lease_ms),
            lambda deadline_ms: {"code": 200, "deadline_ms": deadline_ms},
        )

    def _holder(self, request: Request, given: _Shared) -> _Holder:
        """Return the owner with topic and group. Raises InvalidRequestError or ForbiddenError."""
        holder = _Holder(*checked_names(given.topic, given.group, given.owner))
        check_name(request, holder.topic)
        self._broker.partitions(holder.topic)
        return holder
