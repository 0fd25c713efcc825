"""The answers of `/v0` (http-v0), as values: the server encodes them, the client decodes them.

The answers that the server assembles from bytes (writes, pages, claims) are defined here too; tests compare them with
what is really sent.
"""

from typing import Any

from msgspec import Struct, field

from driftq.model.router_spec import Filter, Guarantee
from driftq.model.tombstone import Tombstone
from driftq.model.topic_config import TopicConfig, TopicType


class Performance(Struct, frozen=True, omit_defaults=True):
    """Time and work of a request. A field that has no meaning for a call is left out."""

    server_total_ms: float
    wal_append_ms: float | None = None
    fsync_ms: float | None = None
    records_scanned: int | None = None
    throttle_wait_ms: float | None = None
    cold_segments_read: int | None = None


class Listing(Struct, kw_only=True, omit_defaults=True):
    """The fields of every page of a list: `next_cursor` is where the next page begins (http-v0 §1.9)."""

    performance: Performance
    next_cursor: str | None = None


class Health(Struct, frozen=True):
    """The answer of a process that is alive."""

    status: str
    version: str
    uptime_ms: int


class Holes(Struct, frozen=True, omit_defaults=True):
    """Losses that no client asked for: ranges of seqs by reason, and damaged control frames."""

    corruption: int
    crash: int
    control: int
    at_most: int = 0
    """How many of the ranges are upper bounds: it is not known that any of their seqs had a record."""


class WriterState(Struct, frozen=True, omit_defaults=True):
    """What is wrong with a writer of the server."""

    state: str
    """`hung`: the writer does not answer. `replaced`: its process ended, and threads of the server do its work."""
    ms: int | None = None
    """How long the writer has not answered, in milliseconds."""


class ClockAhead(Struct, frozen=True):
    """How far record timestamps are ahead of the wall clock (http-v0 §19.4)."""

    ahead_ms: int


class Readiness(Struct, frozen=True, omit_defaults=True):
    """The answer of a server that accepts requests."""

    status: str
    wal_replay_complete: bool
    topics: int
    holes: Holes | None = None
    writable: bool = True
    """False while the server refuses records; reads, deletes and freeing space work. Left out while it is true."""
    reason: str | None = None
    """Why it is not writable: `disk_full`, `internal` if the next log file cannot be made for another reason, or
    `throttled` while the log writer hangs.
    """
    message: str | None = None
    """The reason as a sentence for people."""
    writers: dict[str, WriterState] | None = None
    """Writers with a problem: `log`, `segments`. Left out if there is none."""
    clock: ClockAhead | None = None
    """Present while `$ts` is more than 1000 ms ahead of the wall clock."""


class QueueCounts(Struct, frozen=True):
    """The number of jobs of a queue in each state (http-v0 §14.7)."""

    ready: int
    in_flight: int
    dead_lettered: int


class TopicPut(Struct):
    """The answer to a PUT of a topic (§6.1)."""

    topic: str
    created: bool
    config: TopicConfig
    performance: Performance


class TopicState(Struct, omit_defaults=True):
    """The state of a topic (§6.2, §22.6)."""

    topic: str
    type: TopicType
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    config: TopicConfig
    effective_priority: int
    last_write_ts: int | None
    last_read_ts: int | None
    synced_seq: int | None
    epoch: int
    performance: Performance
    queue: QueueCounts | None = None


class TopicRow(Struct):
    """One topic in the list of topics (§6.3)."""

    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    effective_priority: int


class TopicList(Listing):
    """A page of the list of topics (§6.3)."""

    topics: list[TopicRow]


class TopicDeleted(Struct):
    """The answer to a DELETE of a topic (§6.4)."""

    topic: str
    deleted: bool
    routers_removed: list[str]
    performance: Performance


class RecordsDeleted(Struct):
    """The answer to a delete of records (§10)."""

    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int
    performance: Performance


class Record(Struct, omit_defaults=True):
    """A record as readers get it."""

    seq: int = field(name="$seq")
    ts: int = field(name="$ts")
    data: Any
    node: str | None = field(name="$node", default=None)
    tag: str | None = field(name="$tag", default=None)
    meta: dict[str, Any] | None = None


class Written(Struct, omit_defaults=True):
    """The answer to a write."""

    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool
    deduped: bool
    synced_seq: int | None
    performance: Performance
    seqs: list[int] = []


class DiffPage(Struct):
    """The answer to a diff: one page of records."""

    topic: str
    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Tombstone | None
    lag: int
    epoch: int
    performance: Performance


class Job(Struct, omit_defaults=True):
    """A job that a worker has under a lease."""

    seq: int = field(name="$seq")
    lease_id: str
    deadline: int
    ts: int = field(name="$ts")
    deliveries: int
    data: Any
    tag: str | None = field(name="$tag", default=None)
    meta: dict[str, Any] | None = None


class Claimed(Struct):
    """The answer to a claim."""

    topic: str
    claimed: list[Job]
    count: int
    ready: int
    performance: Performance


class AckAnswer(Struct):
    """The answer to an ack."""

    topic: str
    acked: int
    skipped: list[int]
    ready: int
    in_flight: int
    performance: Performance


class NackAnswer(Struct):
    """The answer to a nack."""

    topic: str
    nacked: int
    skipped: list[int]
    ready: int
    in_flight: int
    performance: Performance


class LeaveAnswer(Struct):
    """The answer to a leave: the number of claims that it ended."""

    topic: str
    ended: int
    performance: Performance


class ExtendAnswer(Struct):
    """The answer to an extend."""

    topic: str
    extended: int
    skipped: list[int]
    deadlines: dict[str, int]
    performance: Performance


class RouterPut(Struct):
    """The answer to a PUT of a router."""

    router: str
    created: bool
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: Filter | None
    allow_cycle: bool
    guarantee: Guarantee
    created_ts: int
    performance: Performance


class RouterState(Struct):
    """The state of one router."""

    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: Filter | None
    allow_cycle: bool
    guarantee: Guarantee
    created_ts: int
    forwarded_total: int
    performance: Performance


class RouterRow(Struct):
    """One router in the list of routers."""

    router: str
    source: str
    dest: str
    guarantee: Guarantee
    forwarded_total: int


class RouterList(Listing):
    """A page of the list of routers."""

    routers: list[RouterRow]


class RouterDeleted(Struct):
    """The answer to a DELETE of a router."""

    router: str
    deleted: bool
    performance: Performance


class Cursor(Struct, frozen=True, omit_defaults=True):
    """Where a watch begins in one topic."""

    from_seq: int
    head_seq: int
    earliest_seq: int
    epoch: int | None = None
    """Identifies one creation of the topic. Present for a reader that asks with `include_epoch`."""


class Watching(Struct):
    """The answer to a watch."""

    wid: str
    stream_url: str
    session_ttl_ms: int
    topics: dict[str, Cursor]
    performance: Performance
