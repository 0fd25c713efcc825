"""What the broker API answers (http-v1), as values: the document describes them, the client decodes them."""

from typing import Literal

from msgspec import Struct


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


class GroupLeft(Struct):
    """How many streams are ended."""

    streams: int


class Extended(Struct):
    """Until when it is held."""

    deadline_ms: int


class EntryResult(Struct, omit_defaults=True):
    """What became of one entry of a batch: the status of a single call, and of a refusal its body."""

    code: int
    error: str = ""
    message: str = ""
    reason: str = ""
    retry_after_ms: int = 0
    limit: str = ""


class EntryResults(Struct):
    """What became of all of them, in their order."""

    results: list[EntryResult]


class ExtendResult(EntryResult, omit_defaults=True):
    """Until when one message is held, or why it is not."""

    deadline_ms: int = 0


class ExtendResults(Struct):
    """What became of all of them, in their order."""

    results: list[ExtendResult]


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


class PartitionMoved(Struct):
    """What a seek did to one partition."""

    partition: int
    floor_before: int
    floor_after: int


class GroupMoved(Struct):
    """What a seek did."""

    moved: list[PartitionMoved]


class KeyStanding(Struct, omit_defaults=True):
    """How a key stands after a call."""

    status: Literal["PENDING", "COMMITTED", "FAILED"]
    already_done: bool
    result: str = ""
    lease_until_ms: int = 0


class KeyResult(EntryResult, omit_defaults=True):
    """How one key of a batch stands after a call, or why the call was refused."""

    status: Literal["", "PENDING", "COMMITTED", "FAILED"] = ""
    already_done: bool = False
    result: str = ""
    lease_until_ms: int = 0


class KeyResults(Struct):
    """How all of them stand, in their order."""

    results: list[KeyResult]


class KeyEntry(Struct):
    """What is known of a key."""

    status: Literal["PENDING", "COMMITTED", "FAILED"]
    owner: str
    lease_until_ms: int
    result: str
    last_error: str
    updated_at_ms: int


class StepInGroup(Struct):
    """How a step stands in one group: of one that has it done, the deliveries are counted too."""

    group: str
    attempts: int
    state: Literal["ready", "leased", "waiting", "done", "dead"]
    last_error: str


class StepLetter(Struct):
    """A dead letter that came of a step."""

    topic: str
    partition: int
    offset: int
    group: str
    attempts: int
    last_error: str
    routed_at_ms: int


class RunStep(Struct, omit_defaults=True):
    """A message of a run: how it stands on the whole, and in every group."""

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
    """A job, unless it was a dry run."""

    matched: int
    job_id: str = ""


class RedriveJob(Struct):
    """How a redrive stands."""

    state: Literal["running", "done", "cancelled", "failed"]
    matched: int
    moved: int
    failed: int
    rate: float | None
    started_ms: int
