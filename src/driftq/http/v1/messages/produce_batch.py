"""`POST /v1/produce/batch` (http-v1 §22): many messages in one call, stored all or none, or each on its own."""

from msgspec import Struct
from msgspec.json import Decoder

from driftq.errors import DriftQError, InvalidRequestError
from driftq.features.broker.protocols import Produced
from driftq.http.access import Scope
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v1.errors import error_facts
from driftq.http.v1.messages.produce import Checked, GivenEnvelope, LabelledEnvelope, check_produce, checked_message
from driftq.http.v1.params import only_body, stripped
from driftq.http.v1.replies import json_reply
from driftq.server import Server
from driftq.system.runtime import Pending

MESSAGES_MAX = 1000


class BatchMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """One message of a batch."""

    key: str | None = None
    value: str | None = None
    envelope: GivenEnvelope | None = None


class BatchBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a batch."""

    topic: str | None = None
    messages: list[BatchMessage] | None = None
    atomic: bool | None = None


class LabelledMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """One message of a batch, on a server that accepts labels."""

    key: str | None = None
    value: str | None = None
    envelope: LabelledEnvelope | None = None


class LabelledBatch(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a batch, on a server that accepts labels."""

    topic: str | None = None
    messages: list[LabelledMessage] | None = None
    atomic: bool | None = None


class BatchEndpoint:
    """The handler of `POST /v1/produce/batch`."""

    def __init__(self, server: Server) -> None:
        self._broker = server.broker
        self._body_bytes_max = server.settings.limits.body_bytes_max
        labels = server.settings.broker.accept_labels
        self._decoder: Decoder[BatchBody | LabelledBatch] = Decoder(LabelledBatch if labels else BatchBody)

    def routes(self) -> list[Route]:
        """Return the route of batches."""
        return [Route("POST", "/v1/produce/batch", self.produce, Scope.WRITE)]

    def produce(self, request: Request) -> Pending[Reply]:
        """Store messages in their order; atomic unless the body disables it."""
        given = only_body(self._decoder, request, self._body_bytes_max)
        topic, messages = stripped(given.topic), given.messages
        if not topic or messages is None:
            raise InvalidRequestError("topic and messages are required")
        if not 0 < len(messages) <= MESSAGES_MAX:
            raise InvalidRequestError(f"a batch has 1 to {MESSAGES_MAX} messages")
        atomic = given.atomic is not False
        checked = [_checked(request, topic, one) for one in messages]
        refused = [one for one in checked if isinstance(one, DriftQError)]
        if atomic and refused:
            raise refused[0]
        good = [one for one in checked if isinstance(one, Checked)]
        stored = self._broker.produce_batch(topic, [(one.message, one.deadline_ms) for one in good], atomic=atomic)
        return stored.mapped(lambda results: _reply(topic, checked, results))


def _checked(request: Request, topic: str, given: BatchMessage | LabelledMessage) -> Checked | DriftQError:
    try:
        checked = checked_message(given.key, given.value, given.envelope)
        check_produce(request, topic, checked)
    except DriftQError as error:
        return error
    return checked


def _reply(topic: str, checked: list[Checked | DriftQError], stored: list[Produced | DriftQError]) -> Reply:
    outcomes = iter(stored)
    results = [_result(one if isinstance(one, DriftQError) else next(outcomes)) for one in checked]
    return json_reply(200, {"status": "produced", "topic": topic, "results": results})


def _result(outcome: Produced | DriftQError) -> dict[str, object]:
    if isinstance(outcome, DriftQError):
        return {"status": "rejected", "error": error_facts(outcome)}
    status = "duplicate" if outcome.duplicate else "produced"
    if outcome.offset < 0:
        return {"status": status}
    return {"status": status, "partition": outcome.partition, "offset": outcome.offset}
