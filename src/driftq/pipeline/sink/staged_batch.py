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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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


class Stage(Protocol):
    """The server's operations for staged writes. Each may be repeated; a refusal raises AnswerError."""

    def stage(self, topic: str, address: TaskAddress, chunk: int, body: bytes) -> None:
        """Store a chunk; the same address and number replaces it."""
        ...

    def commit(self, topic: str, writer: str, batch: int, parts: Sequence[PartName]) -> None:
        """Publish the parts of a batch, unless it is published already, and return when it is on stable storage."""
        ...

    def drop(self, topic: str, writer: str) -> None:
        """Delete the staged parts of a writer."""
        ...


@dataclass
class StagedRows:
    """The rows that a task has staged on the server, as a handle for the driver. `chunks` counts chunks by topic."""

    address: TaskAddress
    chunks: dict[str, int] = field(default_factory=dict)
    records: int = 0
    refused: int = 0


def check_writer(writer: str) -> str:
    """Return the writer's name if its length is allowed. Raises PipelineError if it is not."""
    if not 1 <= len(writer.encode("utf-8", "surrogatepass")) <= WRITER_BYTES_MAX:
        raise PipelineError(f"writer {writer[:_SHOWN]!r} must have 1 to {WRITER_BYTES_MAX} bytes")
    return writer


class PartWriter:
    """Stages the rows of one task, chunk by chunk."""

    def __init__(self, stage: Stage, address: TaskAddress, *, topic: str | None, error_topic: str | None) -> None:
        self._stage = stage
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

    def _put_halves(self, topic: str, rows: pa.Table) -> None:
        half = len(rows) // 2
        self._put(topic, rows.slice(0, half))
        self._put(topic, rows.slice(half))

    def _send(self, topic: str, body: bytes) -> None:
        chunk = self._done.chunks.get(topic, 0)
        self._stage.stage(topic, self._done.address, chunk, body)
        self._done.chunks[topic] = chunk + 1

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
                return


def commit(stage: Stage, handles: Sequence[StagedRows], batch: int, *, error_topic: str | None) -> None:
    """Publish a batch: in each topic all rows at once, in the order of the parts. An empty batch publishes nothing."""
    published: list[str] = []
    for (topic, writer), parts in _parts(handles, error_topic):
        try:
            stage.commit(topic, writer, batch, parts)
        except AnswerError as refusal:
            raise _explained(topic, batch, refusal, published) from refusal
        published.append(topic)


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
