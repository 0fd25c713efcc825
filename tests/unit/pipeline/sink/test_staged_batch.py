"""Staged parts and their commit against a server in memory, without a JVM."""

from collections.abc import Sequence

import pyarrow as pa
import pytest
from msgspec import json

from driftq.codec.arrow_write_body import decode_arrow
from driftq.errors import DriftQError
from driftq.model import limits
from driftq.model.limits import Limits
from driftq.pipeline.errors import PipelineError
from driftq.pipeline.server_connection import AnswerError
from driftq.pipeline.sink.staged_batch import (
    WRITER_BYTES_MAX,
    CommitAnswer,
    PartName,
    PartWriter,
    PublishedBatch,
    StagedRows,
    TaskAddress,
    abandon,
    check_writer,
    commit,
    writer_in_query,
)


class MemoryStage:
    """The server's side of staged writes, with the server's own checks of a body."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.parts: dict[tuple[str, TaskAddress, int], list[bytes]] = {}
        self.topics: dict[str, list[bytes]] = {}
        self.last: dict[tuple[str, str], PublishedBatch] = {}
        self.calls: list[str] = []
        self.commit_error: AnswerError | None = None

    def stage(self, topic: str, address: TaskAddress, chunk: int, body: bytes) -> None:
        self.calls.append("stage")
        try:
            rows = decode_arrow(body, self.limits, self.limits.batch_records_max)
        except DriftQError as error:
            raise AnswerError(400, error.code, error.message) from error
        self.parts[topic, address, chunk] = [rows.data[row] or b"" for row in range(rows.count)]

    def last_batch(self, topic: str, writer: str) -> PublishedBatch | None:
        return self.last.get((topic, writer))

    def commit(self, topic: str, writer: str, batch: int, parts: Sequence[PartName]) -> CommitAnswer:
        self.calls.append(f"commit {topic}")
        if self.commit_error is not None:
            raise self.commit_error
        last = self.last.get((topic, writer))
        if last is not None and batch <= last.batch:
            first, end = (last.first, last.last) if batch == last.batch else (None, None)
            return CommitAnswer(first, end, deduped=True)
        before = len(self.topics.get(topic, ()))
        for part, attempt, count in parts:
            for chunk in range(count):
                found = self.parts[topic, TaskAddress(writer, batch, part, attempt), chunk]
                self.topics.setdefault(topic, []).extend(found)
        self.last[topic, writer] = PublishedBatch(batch, before + 1, len(self.topics[topic]))
        return CommitAnswer(before + 1, len(self.topics[topic]), deduped=False)

    def drop(self, topic: str, writer: str) -> None:
        self.calls.append(f"drop {topic} {writer}")
        if self.commit_error is not None:
            raise self.commit_error


def part(number: int = 0, attempt: int = 0, batch: int = 0) -> TaskAddress:
    return TaskAddress("w", batch, number, attempt)


def rows(*texts: str | None, **more: list[str | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"data": pa.array(texts, pa.string()), **more})


def written(
    stage: MemoryStage, address: TaskAddress, batch: pa.RecordBatch, error_topic: str | None = None
) -> StagedRows:
    return PartWriter(stage, address, topic="t", error_topic=error_topic).write(iter([batch]))


def test_parts_are_published_in_the_order_of_partitions_and_only_those_named() -> None:
    stage = MemoryStage()
    second = written(stage, part(1), rows("3", "4"))
    written(stage, part(0, attempt=1), rows("99"))
    first = written(stage, part(0, attempt=2), rows("1", "2"))
    commit(stage, [second, first], 0, error_topic=None)
    assert stage.topics == {"t": [b"1", b"2", b"3", b"4"]}
    assert (first.records, first.chunks) == (2, {"t": 1})


def test_a_batch_that_is_repeated_is_published_once() -> None:
    stage = MemoryStage()
    for attempt in (1, 2):
        commit(stage, [written(stage, part(attempt=attempt), rows("1"))], 0, error_topic=None)
    assert stage.topics == {"t": [b"1"]}


def test_an_empty_batch_asks_nothing_of_the_server() -> None:
    stage = MemoryStage()
    commit(stage, [written(stage, part(), rows())], 0, error_topic=None)
    assert stage.calls == []


def test_a_refused_record_fails_the_batch_by_name() -> None:
    stage = MemoryStage(Limits(record_bytes_max=20))
    with pytest.raises(PipelineError, match=r"tag 'k3'.*27 bytes.*record_too_large.*errorTopic"):
        written(stage, part(), rows("1", "2", '"' + "x" * 25 + '"', "4", tag=["k1", "k2", "k3", "k4"]))
    with pytest.raises(PipelineError, match="data is null"):
        written(stage, part(), rows("1", None))


def test_refused_records_go_to_the_error_topic_and_the_others_keep_their_order() -> None:
    stage = MemoryStage()
    texts = [str(number) for number in range(200)]
    texts[17], texts[130] = "{broken", "also broken"
    handle = written(stage, part(), rows(*texts, None), error_topic="errors")
    commit(stage, [handle], 0, error_topic="errors")
    assert stage.topics["t"] == [text.encode() for text in texts if "broken" not in text]
    notes = [json.decode(value) for value in stage.topics["errors"]]
    assert [note["record"]["data"] for note in notes] == [None, "{broken", "also broken"]
    assert {note["error"]["code"] for note in notes} == {"invalid_request"}
    assert (handle.records, handle.refused) == (198, 3)
    assert stage.calls[-2:] == ["commit errors", "commit t"]


def test_a_record_too_large_for_the_error_topic_too_is_cut_there() -> None:
    stage = MemoryStage(Limits(record_bytes_max=8000))
    commit(stage, [written(stage, part(), rows('"' + "x" * 9000 + '"'), error_topic="errors")], 0, error_topic="errors")
    [note] = [json.decode(value) for value in stage.topics["errors"]]
    assert note["truncated"]
    assert len(note["record"]["data"]) == 1024


def test_a_server_that_takes_fewer_records_in_a_call_gets_fewer() -> None:
    stage = MemoryStage(Limits(batch_records_max=100))
    texts = [str(number) for number in range(1000)]
    commit(stage, [written(stage, part(), rows(*texts))], 0, error_topic=None)
    assert stage.topics["t"] == [text.encode() for text in texts]
    assert len(stage.calls) < 30


def test_what_one_record_cannot_help_is_not_blamed_on_one() -> None:
    class Full(MemoryStage):
        def stage(self, topic: str, address: TaskAddress, chunk: int, body: bytes) -> None:
            raise AnswerError(422, "topic_full", "full")

    with pytest.raises(AnswerError):
        written(Full(), part(), rows("1", "2"), error_topic="errors")


def test_a_commit_that_is_refused_says_what_to_do() -> None:
    stage = MemoryStage()
    stage.commit_error = AnswerError(409, "stage_incomplete", "2 parts are not there")
    with pytest.raises(PipelineError, match=r"batch 3 is not in topic 't'.*DRIFTQ_STAGE_TTL_MS"):
        commit(stage, [StagedRows(part(batch=3), {"t": 1})], 3, error_topic=None)


def test_a_batch_too_large_for_one_commit_says_how_to_get_past_it() -> None:
    stage = MemoryStage()
    stage.commit_error = AnswerError(
        400, "batch_too_large", "2 bytes in one commit; the limit is 1; commit fewer parts"
    )
    with pytest.raises(PipelineError, match=r"--max-records.*offsets/3, .* from its checkpoint"):
        commit(stage, [StagedRows(part(batch=3), {"t": 1})], 3, error_topic=None)


def test_where_another_topic_has_such_a_batch_already_that_is_said() -> None:
    class Small(MemoryStage):
        def commit(self, topic: str, writer: str, batch: int, parts: Sequence[PartName]) -> CommitAnswer:
            if topic == "t":
                raise AnswerError(400, "batch_too_large", "2 bytes in one commit; the limit is 1; commit fewer parts")
            return CommitAnswer(1, 1, deduped=False)

    with pytest.raises(PipelineError, match=r"errors already has the whole batch"):
        commit(Small(), [StagedRows(part(), {"t": 1, "errors": 1})], 0, error_topic="errors")


class _OfTheBroker(MemoryStage):
    """Refuses topics of the broker, as the server does."""

    def stage(self, topic: str, address: TaskAddress, chunk: int, body: bytes) -> None:
        if topic.startswith("@"):
            raise AnswerError(409, "read_only", "topics of the broker are written through /v1")
        super().stage(topic, address, chunk, body)


def test_rows_that_name_a_topic_of_the_broker_go_to_the_error_topic() -> None:
    stage = _OfTheBroker()
    named = rows("1", "2", "3", topic=["a", "@runs", "@runs"])
    handle = PartWriter(stage, part(), topic=None, error_topic="errors").write(iter([named]))
    commit(stage, [handle], 0, error_topic="errors")
    assert stage.topics["a"] == [b"1"]
    notes = [json.decode(value) for value in stage.topics["errors"]]
    assert [(note["topic"], note["record"]["data"], note["error"]["code"]) for note in notes] == [
        ("@runs", "2", "read_only"),
        ("@runs", "3", "read_only"),
    ]


def test_a_topic_of_the_broker_that_was_asked_for_stops_the_query() -> None:
    with pytest.raises(AnswerError):
        PartWriter(_OfTheBroker(), part(), topic="@runs", error_topic="errors").write(iter([rows("1")]))


@pytest.mark.parametrize("error", [None, AnswerError(500, "internal", "the disk is full")])
def test_an_abort_drops_what_waits_and_says_nothing_of_its_own(error: AnswerError | None) -> None:
    stage = MemoryStage()
    stage.commit_error = error
    abandon(stage, [StagedRows(part(), {"t": 1, "errors": 1}), StagedRows(part(1), {"t": 1})])
    assert stage.calls == ["drop errors w", "drop t w"]


def test_a_writer_has_a_name_the_server_takes() -> None:
    assert limits.WRITER_BYTES_MAX == WRITER_BYTES_MAX
    assert check_writer("w" * 128) == "w" * 128
    for name in ("", "ü" * 65):
        with pytest.raises(PipelineError, match="128 bytes"):
            check_writer(name)


def identified(stage: MemoryStage, batch: int, *texts: str, known_as: Sequence[str] = ("w",)) -> None:
    """Write rows under writer `w` and a number, as `df.write` with options writer and batch does."""
    writer = PartWriter(stage, part(batch=batch), topic="t", error_topic=None, known_as=known_as)
    commit(stage, [writer.write(iter([rows(*texts)]))], batch, error_topic=None, same_rows=True)


def test_a_batch_below_the_last_is_refused_before_anything_is_staged() -> None:
    stage = MemoryStage()
    identified(stage, 6, "1")
    stage.calls.clear()
    with pytest.raises(PipelineError, match=r"batch 3 of writer 'w' is not above its last batch, 6, .*seqs 1 to 1"):
        identified(stage, 3, "2")
    assert stage.calls == []


def test_a_repeated_batch_is_reported_with_its_seqs(caplog: pytest.LogCaptureFixture) -> None:
    stage = MemoryStage()
    identified(stage, 6, "1", "2")
    assert caplog.text == ""
    identified(stage, 6, "1", "2")
    assert stage.topics == {"t": [b"1", b"2"]}
    [line] = caplog.records
    assert line.levelname == "WARNING"
    assert "batch 6 of writer 'w' was published before, so its 2 rows were not written again" in line.message
    assert "seqs 1 to 2" in line.message


def test_a_repeated_batch_with_other_rows_is_an_error() -> None:
    stage = MemoryStage()
    identified(stage, 6, "1", "2")
    with pytest.raises(PipelineError, match="has 3 rows now, and was published with 2"):
        identified(stage, 6, "3", "4", "5")


def test_a_batch_that_another_program_has_overtaken_is_an_error() -> None:
    stage = MemoryStage()
    handle = written(stage, part(batch=1), rows("1"))
    identified(stage, 2, "2")
    with pytest.raises(PipelineError, match="another program has published a higher batch"):
        commit(stage, [handle], 1, error_topic=None, same_rows=True)


def test_a_late_duplicate_of_a_stream_s_commit_passes_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    stage = MemoryStage()
    handles = [written(stage, part(batch=batch), rows(str(batch))) for batch in (1, 2)]
    for batch in (1, 2, 1, 2):
        commit(stage, [handles[batch - 1]], batch, error_topic=None)
    assert stage.topics == {"t": [b"1", b"2"]}
    assert caplog.text == ""


def test_a_writer_inside_a_query_has_the_name_of_the_query_too() -> None:
    query = "123e4567-e89b-12d3-a456-426614174000"
    assert (writer_in_query("w", None), writer_in_query("w", query)) == ("w", f"w:{query}")
    assert len(writer_in_query("w" * WRITER_BYTES_MAX, query)) <= WRITER_BYTES_MAX


def test_a_batch_that_an_earlier_release_may_have_written_is_refused() -> None:
    stage = MemoryStage()
    stage.last["t", "plain"] = PublishedBatch(4, 1, 9)
    with pytest.raises(PipelineError, match="batch 4 of writer 'plain' is not above its last batch, 4"):
        identified(stage, 4, "1", known_as=("w", "plain"))
    identified(stage, 5, "1", known_as=("w", "plain"))
    identified(stage, 6, "2", known_as=("w", "plain"))
    assert stage.topics == {"t": [b"1", b"2"]}
