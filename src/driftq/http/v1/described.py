"""Every operation of the broker API as the OpenAPI document tells it; the query form of a call is left out."""

from typing import Literal

from msgspec import Struct

from driftq.http.openapi import Operation
from driftq.http.v1 import batch, groups, idempotency, produce, redrive, settle, topics

_KEY = "/v1/idempotency"
_JOB = "/v1/dlq/redrive/:job"
_NDJSON = {"application/x-ndjson": "One message a line."}
_TEXT = {"text/plain": "Prometheus text, version 0.0.4."}


class BrokerError(Struct, omit_defaults=True):
    """Every answer that is no success; the last three are there with a 429."""

    error: str
    message: str
    reason: str = ""
    retry_after_ms: int = 0
    limit: str = ""


class Alive(Struct):
    """The process answers."""

    status: str


class Build(Struct):
    """What this is."""

    version: str
    commit: str
    wal_enabled: bool


class TopicNames(Struct):
    """Topics, by the bytes of their names."""

    topics: list[str]


class TopicCreated(Struct):
    """A topic, with the partitions it has."""

    status: str
    name: str
    partitions: int


class MessageProduced(Struct):
    """The topic that was asked for."""

    status: str
    topic: str


class BatchResult(Struct, omit_defaults=True):
    """What became of one message."""

    status: Literal["produced", "duplicate", "rejected"]
    partition: int = 0
    offset: int = 0
    error: dict[str, str] = {}


class BatchProduced(Struct):
    """What became of all of them, in their order."""

    status: str
    topic: str
    results: list[BatchResult]


class Extended(Struct):
    """Until when it is held."""

    deadline_ms: int


class PartitionRow(Struct):
    """A group in one partition."""

    partition: int
    floor: int
    last_acked: int
    done: int
    lag: int
    in_flight: int
    waiting: int
    owners: list[str]
    oldest_ms: int | None


class GroupRow(Struct):
    """One group."""

    topic: str
    group: str
    streams: int
    partitions: list[PartitionRow]


class GroupList(Struct):
    """Groups, and how they stand in every partition."""

    groups: list[GroupRow]


class GroupMoved(Struct):
    """What a seek did."""

    moved: list[dict[str, int]]


class KeyStanding(Struct, omit_defaults=True):
    """How a key stands after a call."""

    status: Literal["PENDING", "COMMITTED", "FAILED"]
    already_done: bool
    result: str = ""
    lease_until_ms: int = 0


class KeyEntry(Struct):
    """What is known of a key."""

    status: Literal["PENDING", "COMMITTED", "FAILED"]
    owner: str
    lease_until_ms: int
    result: str
    last_error: str
    updated_at_ms: int


class RunSteps(Struct, omit_defaults=True):
    """The steps of a run, in commit order."""

    run_id: str
    steps: list[dict[str, object]]
    truncated: bool = False


class RedriveAsked(Struct, omit_defaults=True):
    """A job, unless it was a dry run."""

    matched: int
    job_id: str = ""


def _operation(summary: str, **fields: object) -> Operation:
    return Operation(summary=summary, error=BrokerError, **fields)  # type: ignore[arg-type]


def _key_operation(summary: str) -> Operation:
    return _operation(summary, body=idempotency.KeyBody, reply=KeyStanding, errors=(404, 409))


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("GET", "/v1/healthz"): _operation("Does the process answer?", reply=Alive, open=True),
    ("GET", "/v1/version"): _operation("What this is.", reply=Build, open=True),
    ("GET", "/v1/topics"): _operation("Topics of the broker.", reply=TopicNames),
    ("POST", "/v1/topics"): _operation(
        "Create a topic, unless it is there.", body=topics.TopicBody, reply=TopicCreated, statuses=(201,)
    ),
    ("POST", "/v1/produce"): _operation("Store a message.", body=produce.ProduceBody, reply=MessageProduced),
    ("POST", "/v1/produce/batch"): _operation("Store messages.", body=batch.BatchBody, reply=BatchProduced),
    ("GET", "/v1/consume"): _operation(
        "Join a group, and get messages.",
        errors=(400,),
        query={"topic": str, "group": str, "owner": str, "lease_ms": int, "max_in_flight": int},
        required_query=frozenset({"topic", "group", "owner"}),
        other_media=_NDJSON,
    ),
    ("POST", "/v1/ack"): _operation("A message is done.", body=settle.AckBody, statuses=(204,), errors=(409,)),
    ("POST", "/v1/nack"): _operation("A message failed.", body=settle.NackBody, statuses=(204,), errors=(409,)),
    ("POST", "/v1/extend"): _operation(
        "More time for a message.", body=settle.ExtendBody, reply=Extended, errors=(409,)
    ),
    ("GET", "/v1/groups"): _operation("How groups stand.", reply=GroupList, query={"topic": str, "group": str}),
    ("POST", "/v1/groups/seek"): _operation(
        "Put a group elsewhere.", body=groups.SeekBody, reply=GroupMoved, errors=(409,)
    ),
    ("GET", _KEY): _operation(
        "What is known of an idempotency key.",
        reply=KeyEntry,
        errors=(400, 404),
        query={"tenant_id": str, "topic": str, "group": str, "idempotency_key": str},
        required_query=frozenset({"topic", "group", "idempotency_key"}),
    ),
    ("POST", f"{_KEY}/begin"): _key_operation("Take a key, unless its work is done."),
    ("POST", f"{_KEY}/renew"): _key_operation("Keep a key."),
    ("POST", f"{_KEY}/commit"): _key_operation("The work of a key is done."),
    ("POST", f"{_KEY}/fail"): _key_operation("The work of a key failed."),
    ("GET", "/v1/runs/:run_id"): _operation(
        "The steps of a run.", reply=RunSteps, errors=(404,), query={"tenant_id": str}
    ),
    ("POST", "/v1/dlq/redrive"): _operation(
        "Move dead letters back.", body=redrive.RedriveBody, reply=RedriveAsked, statuses=(200, 202)
    ),
    ("GET", _JOB): _operation("How a redrive stands.", reply=dict[str, object], errors=(404,)),
    ("DELETE", _JOB): _operation("Cancel a redrive.", reply=dict[str, object], errors=(404,)),
    ("GET", "/metrics"): _operation("What the server counts.", other_media=_TEXT),
}
