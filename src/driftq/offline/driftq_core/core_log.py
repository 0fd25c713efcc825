"""Reads the log of the Go broker, driftq-core (http-v1 §15.1): JSON lines, bytes in base64, zero values omitted.

    1 message   2 offset   3 topic   4 retry state   5 consume idempotency      other types are skipped

An offset record there means "all up to here"; nothing finer was recorded. Offsets count per partition in some versions
and per topic in others. In both they increase within a partition, and the import relies on nothing else. An incomplete
last line was never acked and is left out; an invalid line anywhere else is an error.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

from msgspec import DecodeError, Struct, ValidationError, json

from driftq.errors import InvalidRequestError
from driftq.model.message import DlqNote, Envelope, Message, RetryPolicy, Routing

MESSAGE, OFFSET, TOPIC, RETRY, OUTCOME = 1, 2, 3, 4, 5


class CoreRecord(Struct, frozen=True):
    """One line of the log."""

    type: int = 0
    topic: str = ""
    partition: int = 0
    offset: int = 0
    group: str = ""
    key: bytes = b""
    value: bytes = b""
    partitions: int = 0
    routing_label: str = ""
    routing_meta: dict[str, str] | None = None
    run_id: str = ""
    step_id: str = ""
    parent_step_id: str = ""
    labels: dict[str, str] | None = None
    target_topic: str = ""
    partition_override: int | None = None
    idempotency_key: str = ""
    tenant_id: str = ""
    deadline: str | None = None
    retry_max_attempts: int = 0
    retry_backoff_ms: int = 0
    retry_max_backoff_ms: int = 0
    dlq_original_topic: str = ""
    dlq_original_partition: int = 0
    dlq_original_offset: int = 0
    dlq_attempts: int = 0
    dlq_last_error: str = ""
    dlq_routed_at_ms: int = 0
    dlq_group: str = ""
    last_error: str = ""
    attempts: int = 0
    next_at: str | int | None = None
    idempotency_scope: str = ""
    idempotency_status: str = ""
    result: bytes | None = None
    updated_at: str | int | None = None


class CoreLine(NamedTuple):
    """A line with a record: its number, the bytes read up to its end, and the record."""

    number: int
    end: int
    record: CoreRecord


class CoreLogError(InvalidRequestError):
    """Raised if the file is not a log of driftq-core."""


_decode = json.Decoder(CoreRecord).decode


def read_lines(lines: Iterable[bytes]) -> Iterator[CoreLine]:
    """Yield every record of a known type. Raise CoreLogError."""
    end = 0
    for number, line in enumerate(lines, 1):
        end += len(line)
        if not line.strip():
            continue
        try:
            record = _decode(line)
        except (DecodeError, ValidationError) as error:
            if not line.endswith(b"\n"):
                return  # an incomplete last line
            raise CoreLogError(f"line {number} is not a record of driftq-core: {error}") from None
        if not MESSAGE <= record.type <= OUTCOME:
            continue
        if not record.topic or record.partition < 0 or record.offset < 0:
            raise CoreLogError(f"line {number} has no topic, or a negative partition or offset")
        yield CoreLine(number, end, record)


class CoreRetry(NamedTuple):
    """The last failure of a message in a group."""

    attempts: int
    last_error: str
    next_at: int


class TopicPlan:
    """Everything that a log contains about one topic, except the messages."""

    def __init__(self) -> None:
        self.partitions = 1
        self.messages = 0
        self.acked: dict[tuple[str, int], int] = {}
        """Maps group and partition to the highest offset up to which all messages are done."""
        self.retries: dict[tuple[str, int, int], CoreRetry] = {}
        """Maps group, partition and offset to the last failure."""
        self.outcomes: dict[tuple[str, str, str], CoreRecord] = {}
        """Outcomes by tenant, group and key."""
        self._old: dict[int, array[int]] = {}
        self._new: dict[int, array[int]] = {}

    def see(self, record: CoreRecord) -> None:
        """Add one record of the log."""
        self.partitions = max(self.partitions, self._highest(record))
        if record.type == MESSAGE:
            self.messages += 1
        elif record.type == OFFSET:
            place = (record.group, record.partition)
            self.acked[place] = max(record.offset, self.acked.get(place, -1))
        elif record.type == RETRY and record.group:
            failure = CoreRetry(max(1, record.attempts), record.last_error, moment(record.next_at))
            self.retries[record.group, record.partition, record.offset] = failure
        elif record.type == OUTCOME and _is_outcome(record):
            self.outcomes[record.tenant_id, record.group, record.idempotency_key] = record

    @staticmethod
    def _highest(record: CoreRecord) -> int:
        # A topic record has the number of partitions in one of two fields.
        return record.partitions or record.partition if record.type == TOPIC else record.partition + 1

    def stored(self, record: CoreRecord, offset: int) -> None:
        """Note that a message of the log was stored at the new `offset`."""
        self._old.setdefault(record.partition, array("q")).append(record.offset)
        self._new.setdefault(record.partition, array("q")).append(offset)

    def floor(self, partition: int, offset: int) -> int:
        """Return the new offset of the last message at or below an old offset, or -1."""
        place = bisect_right(self._old.get(partition, ()), offset) - 1
        return self._new[partition][place] if place >= 0 else -1

    def exactly(self, partition: int, offset: int) -> int | None:
        """Return the new offset of the message with this old offset; None if the log does not have it."""
        old = self._old.get(partition, array("q"))
        place = bisect_right(old, offset) - 1
        return self._new[partition][place] if place >= 0 and old[place] == offset else None


def _is_outcome(record: CoreRecord) -> bool:
    """Whether the record is a final outcome. Leases are ignored: they end at a restart, and so at an import."""
    ended = record.idempotency_status in ("COMMITTED", "FAILED")
    return ended and record.idempotency_scope == "consume" and bool(record.group and record.idempotency_key)


def plan(lines: Iterable[CoreLine]) -> dict[str, TopicPlan]:
    """Return the contents of a log by topic. Raise CoreLogError."""
    topics: dict[str, TopicPlan] = {}
    for line in lines:
        if line.record.type == MESSAGE:
            message_of(line)
        topics.setdefault(line.record.topic, TopicPlan()).see(line.record)
    return topics


def message_of(line: CoreLine) -> Message:
    """Return the message of a record. Raise CoreLogError."""
    record = line.record
    try:
        key, value = record.key.decode(), record.value.decode()
    except UnicodeDecodeError:
        raise CoreLogError(f"line {line.number}: key and value must be UTF-8") from None
    policy = RetryPolicy(record.retry_max_attempts, record.retry_backoff_ms, record.retry_max_backoff_ms)
    envelope = Envelope(
        run_id=record.run_id,
        step_id=record.step_id,
        parent_step_id=record.parent_step_id,
        labels=record.labels or {},
        target_topic=record.target_topic,
        partition_override=record.partition_override,
        idempotency_key=record.idempotency_key,
        tenant_id=record.tenant_id,
        deadline=record.deadline or "",
        retry_policy=None if policy == RetryPolicy() else policy,
        dlq=_note(record),
    )
    routing = Routing(record.routing_label, record.routing_meta or {})
    return Message(value, key, None if envelope == Envelope() else envelope, None if routing == Routing() else routing)


def _note(record: CoreRecord) -> DlqNote | None:
    if not record.dlq_original_topic:
        return None
    return DlqNote(
        record.dlq_original_topic,
        record.dlq_original_partition,
        record.dlq_original_offset,
        record.dlq_attempts,
        record.dlq_last_error,
        record.dlq_routed_at_ms,
        record.dlq_group,
    )


def moment(time: str | int | None) -> int:
    """Return a time of the log in ms; 0 if there is none."""
    if isinstance(time, int):
        return time
    try:
        return max(0, round(datetime.fromisoformat(time or "").timestamp() * 1000))
    except (ValueError, OverflowError):
        return 0
