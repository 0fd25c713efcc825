"""Calls for a topic and its records (http-v0 §6-§10); `Topic` and `AsyncTopic` add those of the other modules."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import ValidationError, convert, structs

from driftq.client.errors import ConfigDiffersError
from driftq.client.producer.producers import AsyncTopicProducer, TopicProducer
from driftq.client.producer.send_buffer import BATCH_RECORDS, BUFFER_BYTES, LINGER_MS
from driftq.client.topics.additions import Additions
from driftq.client.topics.arrow_tables import Arrow
from driftq.client.topics.pages import PAGE_RECORDS, Nodes, as_it_is, diff_page, read_pages
from driftq.client.topics.queues import QueueOperations
from driftq.client.topics.watch import Start, Watched, watched
from driftq.client.transport.calls import JSON, Calls, decoded, path_of, query_of
from driftq.client.transport.new_records import LINES_MAX, NewRecord, encoded_body, line_groups, lines_body, write_body
from driftq.client.transport.operations import Async, Blocking, Operations, flow, operation
from driftq.client.transport.plan import Emit, Flow, Plan, Request
from driftq.client.transport.retry import Repeat
from driftq.model.limits import PAGE_BYTES_MAX
from driftq.model.tombstone import Tombstone
from driftq.model.topic_config import TopicConfig, TopicPatch
from driftq.model.v0_answers import DiffPage, Record, RecordsDeleted, TopicDeleted, TopicPut, TopicState, Written

T = TypeVar("T")

_FIELDS = frozenset(field.name for field in structs.fields(TopicConfig))


def topic_config(config: TopicConfig | None, fields: Mapping[str, Any]) -> TopicConfig:
    """Return the config with these fields changed. Raise TypeError for an unknown name or a wrong type."""
    given = structs.asdict(config) if config is not None else {}
    return _converted({**given, **fields}, TopicConfig)


def topic_patch(fields: Mapping[str, Any]) -> TopicPatch:
    """Return the changes; a field that is None is reset to its default. Raise TypeError as `topic_config` does."""
    if not fields:
        raise TypeError("update() needs at least one setting to change")
    return _converted(fields, TopicPatch)


def explicit_fields(config: TopicConfig | None, fields: Mapping[str, Any]) -> list[str]:
    """Return the settings that a caller has given: by keyword, or in `config` with another value than the default."""
    default = TopicConfig()
    return [
        field
        for field in structs.asdict(default)
        if field in fields or (config is not None and getattr(config, field) != getattr(default, field))
    ]


def check_same(topic: str, there: TopicConfig, asked: TopicConfig, fields: Iterable[str]) -> None:
    """Raise ConfigDiffersError unless these fields of an existing topic have the requested values."""
    wanted = asked.resolved(topic)
    pairs = {field: (getattr(there, field), getattr(wanted, field)) for field in fields}
    different = {field: (_shown(found), _shown(value)) for field, (found, value) in pairs.items() if found != value}
    if different:
        raise ConfigDiffersError(topic, different)


def _shown(value: Any) -> Any:
    """Return an enumerated value as its text."""
    return str(value) if isinstance(value, str) else value


def _converted(fields: Mapping[str, Any], kind: type[T]) -> T:
    unknown = sorted(fields.keys() - _FIELDS)
    if unknown:
        raise TypeError(f"a topic has no setting {unknown[0]!r}; the settings are {', '.join(sorted(_FIELDS))}")
    try:
        return convert(dict(fields), kind)
    except ValidationError as error:
        raise TypeError(f"invalid topic setting: {error}") from None


_SEQS = {wanted: query_of({"return_seqs": wanted}) for wanted in (False, True)}


class TopicOperations(QueueOperations, Additions, Arrow, Operations):
    """All calls for one topic."""

    def __init__(self, name: str, calls: Calls, driver: Any) -> None:
        super().__init__(calls, driver)
        self.name = name
        self._path = path_of("v0", "topics", name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @operation
    def create(self, config: TopicConfig | None = None, /, **fields: Any) -> Plan[TopicPut]:
        """Create the topic unless it exists. A topic that exists keeps its config.

        So every service may call this at its start. Raise ConfigDiffersError if the topic exists and a setting given
        here has another value there, and TypeError for a setting that a topic does not have.
        """
        return self._created(topic_config(config, fields), explicit_fields(config, fields))

    def _created(self, asked: TopicConfig, fields: list[str]) -> Plan[TopicPut]:
        put = yield from self._calls.json("PUT", self._path, TopicPut, query={"replace": False}, body=asked)
        if not put.created:
            check_same(self.name, put.config, asked, fields)
        return put

    @operation
    def update(self, /, **fields: Any) -> Plan[TopicPut]:
        """Change only these settings; None resets one to its default. Raise NotFoundError or TypeError."""
        return self._calls.json("PATCH", self._path, TopicPut, body=topic_patch(fields))

    @operation
    def replace(self, config: TopicConfig | None = None, /, **fields: Any) -> Plan[TopicPut]:
        """Create the topic, or replace its whole config: settings that are not given are reset to their defaults."""
        return self._calls.json("PUT", self._path, TopicPut, body=topic_config(config, fields))

    @operation
    def info(
        self, *, touch: bool = True, wait_synced: int | None = None, wait_ms: int | None = None
    ) -> Plan[TopicState]:
        """Return the state of the topic. With `wait_synced`, wait until that seq is synced to disk, up to `wait_ms`."""
        query = {"touch": touch, "wait_synced": wait_synced, "wait_ms": wait_ms}
        return self._calls.json("GET", self._path, TopicState, query=query, wait_s=(wait_ms or 0) / 1000)

    @operation
    def delete(self, *, if_empty: bool = False) -> Plan[TopicDeleted]:
        """Delete the topic, its records, and the routers that name it."""
        return self._calls.json("DELETE", self._path, TopicDeleted, query={"if_empty": if_empty})

    @operation
    def write(
        self,
        records: Iterable[NewRecord | Mapping[str, Any]],
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        create: bool | None = None,
        config: TopicConfig | None = None,
        disable_backpressure: bool | None = None,
        return_seqs: bool = False,
    ) -> Plan[Written]:
        """Write records, all or none. Without a key, the client generates one, so that a retry never writes twice."""
        key = idempotency_key or self._calls.fresh_key()
        given = {"node": node, "create": create, "config": config, "disable_backpressure": disable_backpressure}
        body = write_body(records, idempotency_key=key, **given)
        return self._posted(body, key, return_seqs)

    @operation
    def append(
        self,
        data: Any,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        create: bool | None = None,
    ) -> Plan[Written]:
        """Write one record; `data` is any JSON value."""
        key = idempotency_key or self._calls.fresh_key()
        body = write_body([NewRecord(data, tag, node, meta)], idempotency_key=key, create=create)
        return self._posted(body, key, False)

    push = append
    """Another name of `append`, for topics that are queues."""

    @operation
    def append_raw(
        self, lines: bytes, *, tag: str | None = None, node: str | None = None, idempotency_key: str | None = None
    ) -> Plan[Written]:
        """Write a record for each line of JSON, all or none. Raise ValueError with the number of a bad line."""
        key = idempotency_key or self._calls.fresh_key()
        return self._posted(lines_body(lines, tag=tag, node=node, idempotency_key=key), key, False)

    @flow
    def append_lines(
        self, chunks: Iterable[bytes], *, tag: str | None = None, node: str | None = None, lines_max: int = LINES_MAX
    ) -> Flow[Written]:
        """Write lines of JSON that arrive in pieces, `lines_max` lines per write, in order; yield each answer."""
        for lines in line_groups(chunks, lines_max):
            key = self._calls.fresh_key()
            body = lines_body(lines, tag=tag, node=node, idempotency_key=key)
            yield Emit((yield from self._posted(body, key, False)))

    def _batch(
        self, records: list[bytes], *, node: str | None = None, create: bool | None = None
    ) -> Plan[Sequence[int]]:
        """Write one batch of a producer: encoded records, all or none, with an idempotency key. Return their seqs."""
        key = self._calls.fresh_key()
        body = encoded_body(records, idempotency_key=key, node=node, create=create)
        written = yield from self._posted(body, key, False)
        return range(written.first_seq, written.last_seq + 1)

    def _posted(self, body: bytes, key: str | None, return_seqs: bool) -> Plan[Written]:
        request = Request("POST", self._path, _SEQS[return_seqs], JSON, body)
        response = yield from self._calls.response(request, Repeat.SAME if key else Repeat.AGAIN)
        return decoded(response, Written)

    @operation
    def diff(
        self,
        from_seq: int | None = None,
        *,
        from_ts: int | None = None,
        epoch: int | None = None,
        limit: int = PAGE_RECORDS,
        node: Nodes | None = None,
        include_meta: bool = True,
        wait_ms: int = 0,
        max_batch_bytes: int = PAGE_BYTES_MAX,
    ) -> Plan[DiffPage]:
        """Read one page of records after a cursor. With `wait_ms`, wait up to that time for a first record.

        `epoch` is the epoch of the page that the cursor came from. With it, the server always reports a topic that was
        deleted and created again with a `recreated` tombstone, and does not take a cursor above the head of an
        unchanged topic for one of an earlier topic.
        """
        return diff_page(
            self._calls,
            self._path,
            from_seq=from_seq,
            from_ts=from_ts,
            epoch=epoch,
            limit=limit,
            node=node,
            include_meta=include_meta,
            wait_ms=wait_ms,
            max_batch_bytes=max_batch_bytes,
        )

    @flow
    def read(
        self,
        from_seq: int | None = None,
        *,
        from_ts: int | None = None,
        epoch: int | None = None,
        node: Nodes | None = None,
    ) -> Flow[Record | Tombstone]:
        """Yield all records after a cursor, up to the head when the read started, and a tombstone for each gap."""
        return read_pages(self._calls, self._path, as_it_is, from_seq=from_seq, from_ts=from_ts, epoch=epoch, node=node)

    @operation
    def delete_records(
        self, *, before_seq: int | None = None, match: str | tuple[str, str, str] | None = None
    ) -> Plan[RecordsDeleted]:
        """Delete records permanently: those below a seq, those whose tag matches, or those that meet both."""
        body = {"before_seq": before_seq, "match": match}
        return self._calls.json("POST", f"{self._path}/delete", RecordsDeleted, body=body)

    @flow
    def watch(
        self,
        from_seq: int | None = None,
        *,
        from_ts: int | None = None,
        tail: bool = False,
        epoch: int | None = None,
        node: Nodes | None = None,
    ) -> Flow[Record | Tombstone]:
        """Yield all records after a cursor, then new ones as they are written; end when the topic is deleted.

        If the connection breaks, the client reconnects and continues where it stopped.
        """
        starts = {self.name: Start(from_seq, from_ts, tail, epoch)}
        return watched(self._calls, starts, _record_or_gap, node=node)


def _record_or_gap(_: str, item: Watched) -> Record | Tombstone | None:
    return item if isinstance(item, Record | Tombstone) else None


class Topic(TopicOperations, Blocking):
    """One topic, with blocking calls; `Client.topic` makes it."""

    def producer(
        self, *, linger_ms: float = LINGER_MS, max_batch: int = BATCH_RECORDS, max_bytes: int = BUFFER_BYTES
    ) -> TopicProducer:
        """Return a producer that sends up to `max_batch` records in one write (`client/producer/send_buffer`)."""
        return TopicProducer(self._driver, self._batch, linger_ms, max_batch, max_bytes)


class AsyncTopic(TopicOperations, Async):
    """One topic, with calls to await; `AsyncClient.topic` makes it."""

    def producer(
        self, *, linger_ms: float = LINGER_MS, max_batch: int = BATCH_RECORDS, max_bytes: int = BUFFER_BYTES
    ) -> AsyncTopicProducer:
        """Return a producer that sends up to `max_batch` records in one write (`client/producer/send_buffer`)."""
        return AsyncTopicProducer(self._driver, self._batch, linger_ms, max_batch, max_bytes)
