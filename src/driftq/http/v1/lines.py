"""One message as a line of a stream (http-v1 §3.6): JSON in ASCII, for clients split lines at more than newlines."""

from json import JSONEncoder
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from msgspec import to_builtins

from driftq.groups.ports import Delivery
from driftq.model.envelope import Envelope

_HIDDEN = "redrive_policy"
"""Kept with a dead letter for whoever moves it back, and nobody's business else."""

_ENCODER = JSONEncoder(ensure_ascii=True, separators=(",", ":"))


def line_of(delivery: Delivery) -> bytes:
    """The line."""
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
    """What is shown of an envelope."""
    shown: dict[str, Any] = to_builtins(envelope)
    shown.pop(_HIDDEN, None)
    return shown
