"""`GET /v1/consume` (http-v1 §3.6): sends messages as lines until the client disconnects.

While the sink is full, the broker delivers nothing to the client, so nothing is buffered beyond what the sink has
accepted. A client that reads nothing for `stream_stall_ms` is disconnected without the normal end of a stream.
"""

from collections.abc import Sequence
from json import JSONEncoder
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.json import Decoder

from driftq.engine.load.admission import AdmissionSlot
from driftq.errors import InvalidRequestError
from driftq.features.broker.protocols import OutgoingMessage
from driftq.features.broker.state.group import ConsumerStream as GroupStream
from driftq.http.access import Scope
from driftq.http.answer import Sink, StreamAnswer
from driftq.http.event_stream import HEADERS, Heartbeat, StallTimer
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v1.messages.settlement import checked_names
from driftq.http.v1.params import I32_MAX, I64_MAX, body_of, check_name, only_body, query_of, stripped, whole_number
from driftq.http.v1.replies import json_reply
from driftq.model.message import Envelope
from driftq.server import Server

_HIDDEN = "redrive_policy"
"""Stored with a dead letter for redrive, and never shown to consumers."""

_ENCODER = JSONEncoder(ensure_ascii=True, separators=(",", ":"))


def line_of(delivery: OutgoingMessage) -> bytes:
    """Return the line of JSON for a delivery."""
    message = delivery.message
    parts = [
        f'{{"partition":{delivery.partition},"offset":{delivery.offset},"attempts":{delivery.attempts},'
        f'"key":{quoted(message.key)},"value":{quoted(message.value)},"last_error":{quoted(delivery.last_error)}'
    ]
    if message.routing is not None:
        routing = to_builtins(message.routing)
        if routing:
            parts.append(f',"routing":{_ENCODER.encode(routing)}')
    if message.envelope is not None:
        envelope = envelope_shown(message.envelope)
        if envelope:
            parts.append(f',"envelope":{_ENCODER.encode(envelope)}')
    parts.append("}\n")
    return "".join(parts).encode("ascii")


def envelope_shown(envelope: Envelope) -> dict[str, Any]:
    """Return the fields of an envelope that consumers may see."""
    shown: dict[str, Any] = to_builtins(envelope)
    shown.pop(_HIDDEN, None)
    return shown


_NDJSON = b"application/x-ndjson; charset=utf-8"
_BEAT = b"\n"
_LOOKS = 4
"""How often progress is checked within `stream_stall_ms`."""


class _Given(Struct, frozen=True, forbid_unknown_fields=True):
    topic: str | None = None
    group: str | None = None
    owner: str | None = None
    lease_ms: Any = None


class LeaveBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a leave: the streams that end."""

    topic: str | None = None
    group: str | None = None
    owner: str | None = None
    stream: str | None = None


class StreamOwner(Struct, frozen=True):
    """The consumer of a stream, and its options."""

    topic: str
    group: str
    owner: str
    lease_ms: int
    credit: int | None
    """The most messages that the client holds at the same time; None if it gives no limit."""
    stream: str = ""
    """The client's name for this stream; empty if it has none."""


class ConsumeEndpoint:
    """The handlers of consume and leave."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._body_bytes_max = server.settings.limits.body_bytes_max
        self._decoder = Decoder(_Given)
        self._leaves = Decoder(LeaveBody)

    def routes(self) -> list[Route]:
        """Return the routes of consume and leave."""
        scopes = Scope.READ | Scope.WRITE
        return [
            Route("GET", "/v1/consume", self.consume, scopes, stream=True),
            Route("POST", "/v1/leave", self.leave, scopes),
        ]

    def leave(self, request: Request) -> Reply:
        """End the streams with this name of an owner, after the messages that were delivered on them."""
        given = only_body(self._leaves, request, self._body_bytes_max)
        names = stripped(given.topic), stripped(given.group), stripped(given.owner), stripped(given.stream)
        if not all(names):
            raise InvalidRequestError("topic, group, owner, and stream are required")
        check_name(request, names[0])
        return json_reply(200, {"streams": self._server.broker.leave(*names)})

    def consume(self, request: Request) -> StreamAnswer:
        """Join a group and open its stream. Errors, such as a missing topic, are reported before the stream begins."""
        member = self._member(request)
        check_name(request, member.topic)
        self._server.broker.partitions(member.topic)
        slot = self._server.admission.take_stream(request.access.key_id)
        return StreamAnswer(ConsumeStream(self._server, member, slot), content_type=_NDJSON, headers=HEADERS)

    def _member(self, request: Request) -> StreamOwner:
        given = body_of(self._decoder, request, self._body_bytes_max)
        credit: int | None = None
        stream = ""
        lease_ms: object
        if given is None:
            query = query_of(request)
            names = checked_names(query.get("topic"), query.get("group"), query.get("owner"))
            lease_ms = whole_number(query, "lease_ms", 0, I64_MAX)
            credit = request.number("max_in_flight", 0) or None
            stream = stripped(query.get("stream"))
        else:
            names = checked_names(given.topic, given.group, given.owner)
            lease_ms = given.lease_ms
        if lease_ms is None:
            lease_ms = 0
        if type(lease_ms) is not int or not 0 <= lease_ms <= I64_MAX:
            raise InvalidRequestError("invalid lease_ms")
        return StreamOwner(*names, lease_ms, credit if credit is None or credit <= I32_MAX else None, stream)


class ConsumeStream:
    """One stream: the source of its bytes, and the outlet for the broker's deliveries."""

    def __init__(self, server: Server, member: StreamOwner, slot: AdmissionSlot) -> None:
        self._server = server
        self._member = member
        self._slot = slot
        self._sink: Sink | None = None
        self._stream: GroupStream | None = None
        settings = server.settings.broker
        beat_ms = settings.heartbeat_ms
        self._heartbeat = Heartbeat(server.runtime, server.clock, beat_ms, self._beat) if beat_ms else None
        stall_ms = settings.stream_stall_ms
        self._stall_timer = StallTimer(server.runtime, max(1, stall_ms // _LOOKS), stall_ms, self._looked)

    # Called by the connection

    def opened(self, sink: Sink) -> None:
        """Start the stream: its client is a member of the group from now on."""
        self._sink = sink
        if self._heartbeat is not None:
            self._heartbeat.start()
        member = self._member
        self._stream = self._server.broker.attach(
            member.topic,
            member.group,
            member.owner,
            self,
            lease_ms=member.lease_ms,
            credit=member.credit,
            name=member.stream,
        )

    def room(self) -> None:
        """Continue the delivery, because the client has read."""
        self._stall_timer.stop()
        if self._stream is not None:
            self._stream.wake()

    def closed(self) -> None:
        """Leave the group and release the slot; delivered messages stay leased."""
        self._sink = None
        self._stall_timer.stop()
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self._slot.release()
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.detach()

    def goodbye(self) -> None:
        """End the stream normally, which shows the client that nothing is missing; the server shuts down."""
        if self._sink is not None:
            self._sink.close()

    # Called by the broker

    def ready(self) -> bool:
        """Whether the sink accepts data."""
        return self._sink is not None and self._sink.room

    def deliver(self, deliveries: Sequence[OutgoingMessage]) -> None:
        """Write one line for each delivery."""
        self._write(b"".join(map(line_of, deliveries)))

    def end(self) -> None:
        """End the stream, because its client has left."""
        self.goodbye()

    # Internals

    def _write(self, data: bytes) -> None:
        sink = self._sink
        if sink is None:
            return
        sink.write(data)
        if self._heartbeat is not None:
            self._heartbeat.spoke()
        # Whether the client reads shows only after the bytes reach the socket, so it is checked later.
        self._stall_timer.start(sink)

    def _beat(self) -> None:
        if self.ready():
            self._write(_BEAT)

    def _looked(self, stalled: bool) -> None:
        """Abort the stream after `stream_stall_ms` without progress."""
        if stalled and self._sink is not None:
            self._sink.cut()
