"""Stages the rows of tasks as parts, and publishes the parts of all tasks in one commit (http-v0 §22.5).

    task     rows → chunks, staged under (writer, batch, part, attempt) → a handle that lists them
    driver   the handles of all tasks → one commit per topic, each part named → durable

A batch of a writer is published once, even if any step is repeated: the server remembers the last batch of each writer.
The attempt is a random number. So a task that runs twice, or one of a driver that died, stages separate parts, and only
the parts that a handle names are published. Every call may be repeated, so calls wait for a server that is down.

If the server refuses a chunk, it is halved until the bad record is found. That record fails the batch with a message
that names it, or goes to the error topic, which is one more topic of the same batch. The error topic is published
first. After a crash between the two commits, the batch is repeated, and only the missing commit has an effect.

Executors may not have DriftQ installed, so this module uses only the standard library and pyarrow.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple, NoReturn, Protocol

import pyarrow as pa

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.server_connection import AnswerError
from driftq.pipeline.sink.arrow_chunks import body_of, chunks, without_null

REFUSALS = frozenset(("invalid_request", "record_too_large", "batch_too_large", "payload_too_large"))
"""Error codes that a single record of a chunk may cause."""
READ_ONLY = "read_only"
"""Error code of a read-only topic. If rows name their topics, only the rows that name this one are refused."""
WRITER_BYTES_MAX = 128
"""Maximum length of a writer's name in bytes; the server has the same limit."""
_SHOWN = 120
_log = logging.getLogger(__name__)
_KEPT = (128 << 10, 1 << 10)
"""Characters kept of each value of a refused record in the error topic; the smaller limit if the first is refused."""


class TaskAddress(NamedTuple):
    """Identifies the rows of one attempt of a task: writer, batch, part and attempt."""

    writer: str
    batch: int
    part: int
    attempt: int


class PartName(NamedTuple):
    """A part as a commit names it: part, attempt and number of chunks."""

    part: int
    attempt: int
    chunks: int


class PublishedBatch(NamedTuple):
    """The last batch of a writer, and its seqs."""

    batch: int
    first: int
    last: int


class CommitAnswer(NamedTuple):
    """The answer to a commit. The seqs are None if the batch was published before and is not the writer's last one."""

    first: int | None
    last: int | None
    deduped: bool


class Stage(Protocol):
    """The server's operations for staged writes. Each may be repeated; a refusal raises AnswerError."""

    def last_batch(self, topic: str, writer: str) -> PublishedBatch | None:
        """Return the last batch of a writer, or None if it has none in this topic."""
        ...

    def stage(self, topic: str, address: TaskAddress, chunk: int, body: bytes) -> None:
        """Store a chunk; the same address and number replaces it."""
        ...

    def commit(self, topic: str, writer: str, batch: int, parts: Sequence[PartName]) -> CommitAnswer:
        """Publish the parts of a batch, unless it is published already, and return when it is on stable storage."""
        ...

    def drop(self, topic: str, writer: str) -> None:
        """Delete the staged parts of a writer."""
        ...


@dataclass
class StagedRows:
    """The rows that a task has staged on the server, as a handle for the driver.

    `chunks` and `rows` count by topic. `repeated` has the topics that had this batch before the task staged anything.
    """

    address: TaskAddress
    chunks: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    repeated: set[str] = field(default_factory=set)
    records: int = 0
    refused: int = 0


def check_writer(writer: str) -> str:
    """Return the writer's name if its length is allowed. Raises PipelineError if it is not."""
    if not 1 <= len(writer.encode("utf-8", "surrogatepass")) <= WRITER_BYTES_MAX:
        raise PipelineError(f"writer {writer[:_SHOWN]!r} must have 1 to {WRITER_BYTES_MAX} bytes")
    return writer


def writer_in_query(writer: str, query: str | None) -> str:
    """Return the name under which a writer is known to the server: its own, and the query that it runs in.

    A query with a new checkpoint has a new id, so its batches, which count from 0 again, are those of a new writer.
    """
    if query is None:
        return writer
    name = f"{writer}:{query}"
    if len(name.encode()) <= WRITER_BYTES_MAX:
        return name
    return f"{sha256(writer.encode()).hexdigest()[:32]}:{query}"


class PartWriter:
    """Stages the rows of one task, chunk by chunk.

    `known_as` are the names under which the server may know the writer; none if the name was drawn for this write.
    """

    def __init__(
        self,
        stage: Stage,
        address: TaskAddress,
        *,
        topic: str | None,
        error_topic: str | None,
        known_as: Sequence[str] = (),
    ) -> None:
        self._stage = stage
        self._known_as = known_as
        self._topic = topic
        self._error_topic = error_topic
        self._done = StagedRows(address)
        self._rows_max: int | None = None
        """Maximum number of rows per call, if the server turned out to take fewer than usual."""

    def write(self, batches: Iterator[pa.RecordBatch]) -> StagedRows:
        """Stage all rows. Raises PipelineError, naming the record, if one is refused and there is no error topic."""
        for topic, rows in chunks(batches, self._topic):
            kept, missing = without_null(rows)
            for row in range(len(missing)):
                self._refuse(
                    topic,
                    missing.slice(row, 1),
                    "invalid_request",
                    "data is null; to write a JSON null, use the text 'null'",
                )
            self._put(topic, kept)
        return self._done

    def _put(self, topic: str, rows: pa.Table) -> None:
        """Stage rows. If the server refuses them, halve them until the refused record is alone."""
        if not len(rows):
            return
        if self._rows_max is not None and len(rows) > self._rows_max:
            self._put_halves(topic, rows)
            return
        try:
            self._send(topic, body_of(rows))
        except AnswerError as refusal:
            named = refusal.said == READ_ONLY and self._topic is None
            if refusal.said not in REFUSALS and not named:
                raise
            if named or len(rows) == 1:
                for row in range(len(rows)):
                    self._refuse(topic, rows.slice(row, 1), refusal.said, refusal.message)
                return
            if refusal.said == "batch_too_large":
                self._rows_max = len(rows) // 2
            self._put_halves(topic, rows)
        else:
            self._done.records += len(rows)
            self._done.rows[topic] = self._done.rows.get(topic, 0) + len(rows)

    def _put_halves(self, topic: str, rows: pa.Table) -> None:
        half = len(rows) // 2
        self._put(topic, rows.slice(0, half))
        self._put(topic, rows.slice(half))

    def _send(self, topic: str, body: bytes) -> None:
        chunk = self._done.chunks.get(topic, 0)
        if not chunk:
            self._check(topic)
        self._stage.stage(topic, self._done.address, chunk, body)
        self._done.chunks[topic] = chunk + 1

    def _check(self, topic: str) -> None:
        """Refuse a batch below the last one of its writer, before anything is staged for the topic."""
        batch = self._done.address.batch
        for name in self._known_as:
            last = self._stage.last_batch(topic, name)
            if last is None:
                continue
            if batch < last.batch or (batch == last.batch and name != self._done.address.writer):
                raise PipelineError(
                    f"batch {batch} of writer {name[:_SHOWN]!r} is not above its last batch, {last.batch}, in topic "
                    f"{topic!r} (seqs {last.first} to {last.last}), so nothing was written: number batches upwards; "
                    "with a new or an older checkpoint, choose another name for option writer"
                )
            if batch == last.batch:
                self._done.repeated.add(topic)
            return

    def _refuse(self, topic: str, row: pa.Table, code: str, message: str) -> None:
        record = {name: row[name][0].as_py() for name in row.column_names}
        if self._error_topic is None:
            _fail(topic, self._done.address, record, code, message)
        self._done.refused += 1
        for most in _KEPT:
            try:
                self._send(self._error_topic, _note(topic, self._done.address, record, code, message, most))
            except AnswerError as refusal:
                if refusal.said not in REFUSALS or most == _KEPT[-1]:
                    raise
            else:
                self._done.rows[self._error_topic] = self._done.rows.get(self._error_topic, 0) + 1
                return


def commit(
    stage: Stage, handles: Sequence[StagedRows], batch: int, *, error_topic: str | None, same_rows: bool = False
) -> None:
    """Publish a batch: in each topic all rows at once, in the order of the parts. An empty batch publishes nothing.

    With `same_rows`, a batch that was published before must have had as many rows, because no query vouches for them.
    """
    published: list[str] = []
    for (topic, writer), parts in _parts(handles, error_topic):
        try:
            answer = stage.commit(topic, writer, batch, parts)
        except AnswerError as refusal:
            raise _explained(topic, batch, refusal, published) from refusal
        if answer.deduped:
            _repeated(topic, writer, batch, answer, handles, same_rows=same_rows)
        published.append(topic)


def _repeated(
    topic: str, writer: str, batch: int, answer: CommitAnswer, handles: Sequence[StagedRows], *, same_rows: bool
) -> None:
    """Report a batch that was published before. Raises PipelineError if its rows may be others."""
    named = f"batch {batch} of writer {writer[:_SHOWN]!r}"
    rows = sum(handle.rows.get(topic, 0) for handle in handles)
    if answer.first is None or answer.last is None:
        if same_rows:
            raise PipelineError(
                f"{named} was not written to topic {topic!r}: another program has published a higher batch of this "
                "writer meanwhile; give each program its own writer"
            )
        return
    count = answer.last - answer.first + 1
    there = f"topic {topic!r} has it as seqs {answer.first} to {answer.last}"
    if same_rows and count != rows:
        raise PipelineError(
            f"{named} has {rows} rows now, and was published with {count} ({there}), so it was not written again: "
            "give each write of a batch its own writer, and other rows a higher batch"
        )
    if any(topic in handle.repeated for handle in handles):
        _log.warning("%s was published before, so its %d rows were not written again: %s", named, rows, there)


def abandon(stage: Stage, handles: Sequence[StagedRows]) -> None:
    """Delete staged rows on the server. Optional, because unpublished parts expire; published rows are not touched."""
    for (topic, writer), _ in _parts(handles, None):
        with suppress(PipelineError):  # the user must see the error of the batch, not this one
            stage.drop(topic, writer)


def _parts(handles: Sequence[StagedRows], first: str | None) -> list[tuple[tuple[str, str], list[PartName]]]:
    """Return the parts by topic and writer; topic `first` comes before the others."""
    found: dict[tuple[str, str], list[PartName]] = {}
    for handle in sorted(handles, key=lambda each: each.address.part):
        for topic, count in handle.chunks.items():
            address = handle.address
            name = PartName(address.part, address.attempt, count)
            found.setdefault((topic, address.writer), []).append(name)
    return sorted(found.items(), key=lambda item: (item[0][0] != first, item[0]))


def _explained(topic: str, batch: int, refusal: AnswerError, published: Sequence[str]) -> PipelineError:
    advice = _ADVICE.get(refusal.said, "").format(batch=batch)
    if not advice:
        return refusal
    if published and refusal.said == "batch_too_large":
        advice += f"; {', '.join(published)[:_SHOWN]} already has the whole batch, and would get some rows twice"
    return PipelineError(f"batch {batch} is not in topic {topic!r}: {refusal.message}; {advice}")


_ADVICE = {
    "stage_incomplete": "it took longer than DRIFTQ_STAGE_TTL_MS, or its parts were deleted: run the query again",
    "batch_too_large": (
        "for a stream, set a smaller --max-records (maxRecordsPerTrigger) and remove offsets/{batch}, the plan of "
        "this batch, from its checkpoint; write a table in several steps"
    ),
    "topic_full": "free space in the topic or raise its cap, then run the query again",
}


def _fail(topic: str, address: TaskAddress, record: dict[str, str | None], code: str, message: str) -> NoReturn:
    data = record["data"] or ""
    tag = "" if record.get("tag") is None else f" with tag {(record['tag'] or '')[:_SHOWN]!r}"
    raise PipelineError(
        f"topic {topic!r} refuses a record of partition {address.part}{tag} ({len(data.encode())} bytes, beginning "
        f"{data[:_SHOWN]!r}): {code}: {message[:500]}; drop it, or set option errorTopic"
    )


def _note(topic: str, address: TaskAddress, record: dict[str, str | None], code: str, message: str, most: int) -> bytes:
    """Return the body of a record for the error topic: the refused record and the reason."""
    kept = {name: value if value is None else value[:most] for name, value in record.items()}
    note = {
        "topic": topic,
        "error": {"code": code, "message": message[:500]},
        "record": kept,
        "truncated": kept != record,
        **address._asdict(),
    }
    del note["attempt"]  # a repeated attempt must write the same record
    tag = "" if record.get("tag") is None else (record["tag"] or "")
    columns = {"data": [json.dumps(note, ensure_ascii=False)]} | (
        {"tag": [tag]} if 0 < len(tag.encode()) <= _SHOWN else {}
    )
    return body_of(pa.table(columns))
