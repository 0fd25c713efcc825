"""Lists every operation of the broker API for the OpenAPI document; the query form of calls is left out."""

from driftq.http.openapi.document import Operation
from driftq.http.v1 import groups, idempotency, redrive, topics
from driftq.http.v1.messages import consume, produce
from driftq.http.v1.messages import produce_batch as batch
from driftq.http.v1.messages import settlement as settle
from driftq.http.v1.messages import settlement_batch as settle_batch
from driftq.model import v1_answers as broker_answers

_KEY = "/v1/idempotency"
_JOB = "/v1/dlq/redrive/:job"
_NDJSON = {"application/x-ndjson": "One message per line."}
_TEXT = {"text/plain": "Prometheus text, version 0.0.4."}


def _operation(summary: str, **fields: object) -> Operation:
    return Operation(summary=summary, error=broker_answers.BrokerError, **fields)  # type: ignore[arg-type]


def _key_operation(summary: str) -> Operation:
    return _operation(summary, body=idempotency.KeyBody, reply=broker_answers.KeyStanding, errors=(404, 409))


def _settle_batch(summary: str, body: object = settle_batch.AckBatch) -> Operation:
    return _operation(summary, body=body, reply=broker_answers.EntryResults)


def _key_batch(summary: str) -> Operation:
    return _operation(summary, body=idempotency.KeyBatch, reply=broker_answers.KeyResults)


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("GET", "/v1/healthz"): _operation("Check that the process is alive.", reply=broker_answers.Alive, open=True),
    ("GET", "/v1/version"): _operation(
        "Return version and commit of the server.", reply=broker_answers.Build, open=True
    ),
    ("GET", "/v1/topics"): _operation("List the topics of the broker.", reply=broker_answers.TopicNames),
    ("POST", "/v1/topics"): _operation(
        "Create a topic, unless it exists.", body=topics.TopicBody, reply=broker_answers.TopicCreated, statuses=(201,)
    ),
    ("POST", "/v1/produce"): _operation(
        "Produce a message.", body=produce.ProduceBody, reply=broker_answers.MessageProduced
    ),
    ("POST", "/v1/produce/batch"): _operation(
        "Produce a batch of messages.", body=batch.BatchBody, reply=broker_answers.BatchProduced
    ),
    ("GET", "/v1/consume"): _operation(
        "Join a group and receive messages.",
        errors=(400,),
        query={"topic": str, "group": str, "owner": str, "lease_ms": int, "max_in_flight": int, "stream": str},
        required_query=frozenset({"topic", "group", "owner"}),
        other_media=_NDJSON,
    ),
    ("POST", "/v1/leave"): _operation(
        "End streams of a consumer group.", body=consume.LeaveBody, reply=broker_answers.GroupLeft
    ),
    ("POST", "/v1/ack"): _operation("Ack a message: it is done.", body=settle.AckBody, statuses=(204,), errors=(409,)),
    ("POST", "/v1/nack"): _operation(
        "Nack a message: it failed.", body=settle.MessageNackBody, statuses=(204,), errors=(409,)
    ),
    ("POST", "/v1/extend"): _operation(
        "Extend the lease of a message.", body=settle.MessageExtendBody, reply=broker_answers.Extended, errors=(409,)
    ),
    ("POST", "/v1/ack/batch"): _settle_batch("Ack a batch of messages."),
    ("POST", "/v1/nack/batch"): _settle_batch("Nack a batch of messages.", settle_batch.NackBatch),
    ("POST", "/v1/extend/batch"): _operation(
        "Extend the leases of a batch of messages.", body=settle_batch.ExtendBatch, reply=broker_answers.ExtendResults
    ),
    ("POST", "/v1/release/batch"): _settle_batch("Return messages that were not worked on."),
    ("GET", "/v1/groups"): _operation(
        "Show the positions and lag of groups.", reply=broker_answers.GroupList, query={"topic": str, "group": str}
    ),
    ("POST", "/v1/groups/seek"): _operation(
        "Move the position of a group.", body=groups.SeekBody, reply=broker_answers.GroupMoved, errors=(409,)
    ),
    ("GET", _KEY): _operation(
        "Show the state of an idempotency key.",
        reply=broker_answers.KeyEntry,
        errors=(400, 404),
        query={"tenant_id": str, "topic": str, "group": str, "idempotency_key": str},
        required_query=frozenset({"topic", "group", "idempotency_key"}),
    ),
    ("POST", f"{_KEY}/begin"): _key_operation("Take an idempotency key, unless its work is done."),
    ("POST", f"{_KEY}/renew"): _key_operation("Extend the lease of a key."),
    ("POST", f"{_KEY}/commit"): _key_operation("Mark the work of a key as done."),
    ("POST", f"{_KEY}/fail"): _key_operation("Mark the work of a key as failed."),
    ("POST", f"{_KEY}/begin/batch"): _key_batch("Take a batch of keys, unless their work is done."),
    ("POST", f"{_KEY}/renew/batch"): _key_batch("Extend the leases of a batch of keys."),
    ("POST", f"{_KEY}/commit/batch"): _key_batch("Mark the work of a batch of keys as done."),
    ("POST", f"{_KEY}/fail/batch"): _key_batch("Mark the work of a batch of keys as failed."),
    ("GET", "/v1/runs/:run_id"): _operation(
        "Show the steps of a run.", reply=broker_answers.RunSteps, errors=(404,), query={"tenant_id": str}
    ),
    ("POST", "/v1/dlq/redrive"): _operation(
        "Move dead letters back to their topic.",
        body=redrive.RedriveBody,
        reply=broker_answers.RedriveAsked,
        statuses=(200, 202),
    ),
    ("GET", _JOB): _operation("Show the state of a redrive.", reply=broker_answers.RedriveJob, errors=(404,)),
    ("DELETE", _JOB): _operation("Cancel a redrive.", reply=broker_answers.RedriveJob, errors=(404,)),
    ("GET", "/metrics"): _operation("Return the metrics of the broker and of the server.", other_media=_TEXT),
}
