"""Consuming (http-v1 §3.6): the messages of a group, on a stream that the client reopens when it breaks.

A consumer holds a message until its lease ends, even if the stream breaks before. The server delivers a message that is
not settled by then again, to any consumer of the group. So no message is lost, and only a message that was not acked in
time is delivered twice.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, convert
from msgspec.json import Decoder, decode

from driftq.client.topics.pages import read_pages
from driftq.client.transport.calls import Calls, Query, path_of, query_of
from driftq.client.transport.event_stream import FrameSplitter, Rejoining
from driftq.client.transport.plan import Flow, Open, Plan, Request
from driftq.model.message import Envelope, Message, Routing
from driftq.model.names import broker_topic
from driftq.model.tombstone import Tombstone
from driftq.model.v0_answers import Record

_SILENCE_S = 60.0
"""The stream counts as broken after this time without bytes: three heartbeats of the server, 20 s each."""


class Delivery(Struct):
    """One delivery of a message. `topic`, `group` and `owner` name the receiver; `ack` and `nack` need them."""

    partition: int
    offset: int
    attempts: int
    key: str
    value: str
    last_error: str = ""
    routing: Routing | None = None
    envelope: Envelope = Envelope()
    topic: str = ""
    group: str = ""
    owner: str = ""

    def json(self) -> Any:
        """Return the value decoded from JSON. Raise msgspec.DecodeError if it is not JSON."""
        return decode(self.value)


_delivery = Decoder(Delivery).decode


class MessageStream(Rejoining):
    """The stream on which one member of a group gets its messages."""

    def __init__(self, topic: str, group: str, owner: str, **asked: int | str | None) -> None:
        self._place = topic, group, owner
        query: Query = {"topic": topic, "group": group, "owner": owner, **asked}
        headers = {"accept": "application/x-ndjson"}
        super().__init__(Open(Request("GET", "/v1/consume", query_of(query), headers), _SILENCE_S))
        self._splitter = FrameSplitter(b"\n")
        self._leaving = False

    def leave(self) -> None:
        """Do not open the stream again when it ends."""
        self._leaving = True

    def reopens(self) -> bool:
        """Whether a stream that has ended is opened again."""
        return not self._leaving

    def opening(self) -> Plan[Open]:
        """Return the same request each time; drop the incomplete line of the last stream."""
        self._splitter = FrameSplitter(b"\n")
        return super().opening()

    def heard(self, chunk: bytes) -> Iterator[Delivery]:
        """Yield the messages of the complete lines; an empty line is a heartbeat."""
        for line in self._splitter.feed(chunk):
            if line:
                delivery = _delivery(line)
                delivery.topic, delivery.group, delivery.owner = self._place
                yield delivery


class StoredMessage(Struct, frozen=True):
    """A message as it is stored in its topic, with its position and its time in Unix milliseconds."""

    partition: int
    offset: int
    ts: int
    message: Message


def stored_messages(
    calls: Calls, topic: str, from_offset: int, *, may_be_absent: bool = False
) -> Flow[StoredMessage | Tombstone]:
    """Yield the stored messages from `from_offset` up to the newest at the first page, and a Tombstone for each gap."""
    path = path_of("v0", "topics", broker_topic(topic))
    return read_pages(calls, path, _stored, from_seq=from_offset, may_be_absent=may_be_absent)


def _stored(record: Record) -> StoredMessage:
    partition = int((record.tag or "p0")[1:])
    return StoredMessage(partition, record.seq - 1, record.ts, convert(record.data, Message))
