"""The answers of the broker API (http-v1), as values: the OpenAPI document describes them, the client decodes them."""

from typing import Literal

from msgspec import Struct


class BrokerError(Struct, omit_defaults=True):
    """The body of every refusal. The last three fields are present in an answer with status 429."""

    error: str
    message: str
    reason: str = ""
    retry_after_ms: int = 0
    limit: str = ""


class Alive(Struct):
    """The answer of a process that is alive."""

    status: str


class Build(Struct):
    """Version and commit of the server, and whether it has a WAL."""

    version: str
    commit: str
    wal_enabled: bool


class TopicNames(Struct):
    """The names of the topics, in the order of their bytes."""

    topics: list[str]


class TopicCreated(Struct):
    """The answer to the creation of a topic, with its number of partitions."""

    status: str
    name: str
    partitions: int


class MessageProduced(Struct):
    """The answer to a produce, with the topic of the request."""

    status: str
    topic: str


class BatchResult(Struct, omit_defaults=True):
    """The result of one message of a batch. A rejected message has no place, and a duplicate has none if the message
    that was stored with its key is gone.
    """

    status: Literal["produced", "duplicate", "rejected"]
    partition: int | None = None
    offset: int | None = None
    error: dict[str, str] = {}


class BatchProduced(Struct):
    """The results of all messages of a batch, in order."""

    status: str
    topic: str
    results: list[BatchResult]


class GroupLeft(Struct):
    """The number of streams that a leave ended."""

    streams: int


class Extended(Struct):
    """Until when the message is leased."""

    deadline_ms: int


class EntryResult(Struct, omit_defaults=True):
    """The result of one entry of a batch: the status of a single call and, after a refusal, the fields of its body."""

    code: int
    error: str = ""
    message: str = ""
    reason: str = ""
    retry_after_ms: int = 0
    limit: str = ""


class EntryResults(Struct):
    """The results of all entries, in order."""

    results: list[EntryResult]


class ExtendResult(EntryResult, omit_defaults=True):
    """Until when one message is leased, or why it is not."""

    deadline_ms: int = 0


class ExtendResults(Struct):
    """The results of all extends of a batch, in order."""

    results: list[ExtendResult]


class PartitionRow(Struct):
    """The state of a group in one partition."""

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
    """One group with its partitions."""

    topic: str
    group: str
    streams: int
    partitions: list[PartitionRow]


class GroupList(Struct):
    """Groups, with their state in every partition."""

    groups: list[GroupRow]


class PartitionMoved(Struct):
    """The floor of one partition before and after a seek."""

    partition: int
    floor_before: int
    floor_after: int


class GroupMoved(Struct):
    """The partitions that a seek changed."""

    moved: list[PartitionMoved]


class KeyStanding(Struct, omit_defaults=True):
    """The state of an idempotency key after a call."""

    status: Literal["PENDING", "COMMITTED", "FAILED"]
    already_done: bool
    result: str = ""
    lease_until_ms: int = 0


class KeyResult(EntryResult, omit_defaults=True):
    """The state of one key of a batch after a call, or why the call was refused."""

    status: Literal["", "PENDING", "COMMITTED", "FAILED"] = ""
    already_done: bool = False
    result: str = ""
    lease_until_ms: int = 0


class KeyResults(Struct):
    """The states of all keys of a batch, in order."""

    results: list[KeyResult]


class KeyEntry(Struct):
    """The stored entry of an idempotency key."""

    status: Literal["PENDING", "COMMITTED", "FAILED"]
    owner: str
    lease_until_ms: int
    result: str
    last_error: str
    updated_at_ms: int


class StepInGroup(Struct):
    """The state of a step in one group. `attempts` counts deliveries, also for a finished step."""

    group: str
    attempts: int
    state: Literal["ready", "leased", "waiting", "done", "dead"]
    last_error: str


class StepLetter(Struct):
    """A dead letter that a step became."""

    topic: str
    partition: int
    offset: int
    group: str
    attempts: int
    last_error: str
    routed_at_ms: int


class RunStep(Struct, omit_defaults=True):
    """A message of a run: its overall state, and its state in every group."""

    step_id: str
    parent_step_id: str
    topic: str
    partition: int
    offset: int
    ts: int
    attempts: int
    state: Literal["ready", "leased", "waiting", "done", "dead"]
    last_error: str
    groups: list[StepInGroup]
    dlq: list[StepLetter] = []


class RunSteps(Struct, omit_defaults=True):
    """The steps of a run, in commit order."""

    run_id: str
    steps: list[RunStep]
    truncated: bool = False


class RedriveAsked(Struct, omit_defaults=True):
    """The number of matching letters and, unless it was a dry run, the id of the redrive job."""

    matched: int
    job_id: str = ""


class RedriveJob(Struct):
    """The state of a redrive job."""

    state: Literal["running", "done", "cancelled", "failed"]
    matched: int
    moved: int
    failed: int
    rate: float | None
    started_ms: int
