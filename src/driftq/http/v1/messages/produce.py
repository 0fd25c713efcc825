"""`POST /v1/produce` (http-v1 §3.5): checks a message and its envelope, given as a body or as a query.

This module finds errors in the request; the broker finds all that depend on its state.
"""

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import NamedTuple

from msgspec import Struct
from msgspec.json import Decoder

from driftq.errors import InvalidRequestError
from driftq.http.access import Scope
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v1.params import (
    I32,
    I32_MAX,
    I64,
    I64_MAX,
    Query,
    body_of,
    check_name,
    query_of,
    stripped,
    whole_number,
)
from driftq.http.v1.replies import json_reply
from driftq.model.message import Envelope, Message, RetryPolicy
from driftq.server import Server
from driftq.system.runtime import Pending

_GRAMMAR = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|([+-])([01]\d|2[0-3]):([0-5]\d))", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_MS_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MS


def deadline_ms(text: str, name: str = "deadline") -> int:
    """Return a deadline as Unix ms, rounded up to a whole ms. Raise InvalidRequestError if the text is invalid."""
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise InvalidRequestError(f"invalid {name}")
    fraction = match[2] or ""
    shift = timedelta(0) if match[3] is None else timedelta(hours=int(match[4]), minutes=int(match[5]))
    try:
        whole = datetime.fromisoformat(match[1]).replace(tzinfo=timezone(-shift if match[3] == "-" else shift))
    except ValueError:
        raise InvalidRequestError(f"invalid {name}") from None
    return (whole - _EPOCH) // _MS + -(-int(fraction.ljust(9, "0")) // 1_000_000)


def deadline_text(ms: int, name: str = "deadline_ms") -> str:
    """Return a time in Unix ms as the text that is stored. Raise InvalidRequestError if it is out of range."""
    if not 0 <= ms <= _MS_MAX:
        raise InvalidRequestError(f"invalid {name}")
    return (_EPOCH + ms * _MS).isoformat(timespec="milliseconds")


_BACKOFF_ALONE = "retry_max_attempts must be > 0 when using retry backoff params"


class GivenPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """The retry policy in the body of a produce."""

    max_attempts: I32 | None = None
    backoff_ms: I64 | None = None
    max_backoff_ms: I64 | None = None


class GivenEnvelope(Struct, frozen=True, forbid_unknown_fields=True):
    """The envelope in the body of a produce."""

    run_id: str | None = None
    step_id: str | None = None
    parent_step_id: str | None = None
    tenant_id: str | None = None
    idempotency_key: str | None = None
    target_topic: str | None = None
    partition_override: I32 | None = None
    deadline: str | None = None
    retry_policy: GivenPolicy | None = None


class LabelledEnvelope(GivenEnvelope, frozen=True, forbid_unknown_fields=True):
    """The envelope in the body of a produce, on a server that accepts labels."""

    labels: dict[str, str] | None = None


class ProduceBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a produce."""

    topic: str | None = None
    key: str | None = None
    value: str | None = None
    envelope: GivenEnvelope | None = None


class LabelledBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a produce, on a server that accepts labels."""

    topic: str | None = None
    key: str | None = None
    value: str | None = None
    envelope: LabelledEnvelope | None = None


class Checked(NamedTuple):
    """A valid message, and the deadline in its envelope as Unix ms; None means no deadline."""

    message: Message
    deadline_ms: int | None


class Producing:
    """The handler of `POST /v1/produce`."""

    def __init__(self, server: Server) -> None:
        self._broker = server.broker
        self._body_bytes_max = server.settings.limits.body_bytes_max
        labels = server.settings.broker.accept_labels
        self._decoder: Decoder[ProduceBody | LabelledBody] = Decoder(LabelledBody if labels else ProduceBody)

    def routes(self) -> list[Route]:
        """Return the route of produce."""
        return [Route("POST", "/v1/produce", self.produce, Scope.WRITE)]

    def produce(self, request: Request) -> Pending[Reply]:
        """Store one message and answer when it is committed."""
        given = body_of(self._decoder, request, self._body_bytes_max)
        if given is None:
            topic, checked = _of_query(query_of(request))
        else:
            topic = _required(given.topic, given.value)
            checked = checked_message(given.key, given.value, given.envelope)
        check_produce(request, topic, checked)
        pending = self._broker.produce(topic, checked.message, deadline_ms=checked.deadline_ms)
        return pending.mapped(lambda _: json_reply(200, {"status": "produced", "topic": topic}))


def check_produce(request: Request, topic: str, checked: Checked) -> None:
    """Raise ForbiddenError if the key may not use the topic or the envelope's target topic."""
    check_name(request, topic)
    envelope = checked.message.envelope
    if envelope is not None and envelope.target_topic:
        check_name(request, envelope.target_topic)


def _required(topic: str | None, value: str | None) -> str:
    name = stripped(topic)
    if not name or not value:
        raise InvalidRequestError("topic and value are required")
    return name


def checked_message(key: str | None, value: str | None, envelope: GivenEnvelope | None) -> Checked:
    """Return a message in its stored form. Raise InvalidRequestError if a field is invalid."""
    if not value:
        raise InvalidRequestError("topic and value are required")
    if envelope is None:
        return Checked(Message(value, key or ""), None)
    until = None if not stripped(envelope.deadline) else deadline_ms(envelope.deadline or "")
    labels = envelope.labels if isinstance(envelope, LabelledEnvelope) else None
    stored = Envelope(
        run_id=stripped(envelope.run_id),
        step_id=stripped(envelope.step_id),
        parent_step_id=stripped(envelope.parent_step_id),
        labels=labels or {},
        target_topic=stripped(envelope.target_topic),
        partition_override=envelope.partition_override,
        idempotency_key=stripped(envelope.idempotency_key),
        tenant_id=stripped(envelope.tenant_id),
        deadline="" if until is None else envelope.deadline or "",
        retry_policy=_policy(envelope.retry_policy),
    )
    return Checked(Message(value, key or "", None if stored == _NOTHING_SET else stored), until)


_NOTHING_SET = Envelope()


def _policy(given: GivenPolicy | None) -> RetryPolicy | None:
    if given is None:
        return None
    policy = RetryPolicy(given.max_attempts or 0, given.backoff_ms or 0, given.max_backoff_ms or 0)
    for name in RetryPolicy.__struct_fields__:
        if getattr(policy, name) < 0:
            raise InvalidRequestError(f"invalid retry_{name}")
    return None if policy == RetryPolicy() else policy


def _of_query(query: Query) -> tuple[str, Checked]:
    topic = _required(query.get("topic"), query.get("value"))
    envelope = GivenEnvelope(
        run_id=query.get("run_id"),
        step_id=query.get("step_id"),
        parent_step_id=query.get("parent_step_id"),
        tenant_id=_first(query, "tenant_id", "tenant"),
        idempotency_key=_first(query, "idempotency_key", "idem_key"),
        target_topic=query.get("target_topic"),
        partition_override=whole_number(query, "partition_override", 0, I32_MAX),
        deadline=_deadline(query),
        retry_policy=_query_policy(query),
    )
    return topic, checked_message(query.get("key"), query.get("value"), envelope)


def _first(query: Query, *names: str) -> str | None:
    """Return the first of these arguments that is not blank."""
    return next((value for name in names if stripped(value := query.get(name))), None)


def _deadline(query: Query) -> str | None:
    for name in ("deadline", "deadline_rfc3339"):
        text = query.get(name)
        if stripped(text):
            deadline_ms(text or "", name)
            return text
    ms = whole_number(query, "deadline_ms", -I64_MAX, I64_MAX)
    return None if ms is None else deadline_text(ms)


def _query_policy(query: Query) -> GivenPolicy | None:
    attempts = whole_number(query, "retry_max_attempts", 0, I32_MAX)
    backoff_ms = whole_number(query, "retry_backoff_ms", 0, I64_MAX)
    max_backoff_ms = whole_number(query, "retry_max_backoff_ms", 0, I64_MAX)
    if not attempts and (backoff_ms is not None or max_backoff_ms is not None):
        raise InvalidRequestError(_BACKOFF_ALONE)
    return GivenPolicy(attempts, backoff_ms, max_backoff_ms)
