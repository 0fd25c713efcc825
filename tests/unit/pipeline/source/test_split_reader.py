"""A split read from a server, without one: what is lost while it is read."""

import json
from typing import Any

import pyarrow as pa
import pytest

from driftq.pipeline import DataLossError
from driftq.pipeline.server_connection import AnswerError, Wire
from driftq.pipeline.source.read_columns import Projection
from driftq.pipeline.source.split_plan import Piece, SeqGap, Split
from driftq.pipeline.source.split_reader import Task, loss, read_split

_SPLIT = Split("t", 1, 1, "s", "/h", None, (Piece(11, 20, None),), ())


class _Server(Wire):
    """Retention has taken the seqs up to 14 since the plan was made; or something else has happened."""

    def __init__(self, gap_from: int = 11, gap_to: int = 14, reason: str = "cap") -> None:
        super().__init__("http://test", None)
        self._gap: dict[str, Any] = {"gap_from": gap_from, "gap_to": gap_to, "reason": reason}

    def arrow(self, path: str, value: object) -> bytes:
        told = {"epoch": "1", "tombstone": json.dumps(self._gap), "next_from_seq": "20", "caught_up": "true"}
        return self._stream(range(self._gap["gap_to"] + 1, 21), told)

    def _stream(self, seqs: range, told: dict[str, str]) -> bytes:
        rows = pa.table({"seq": pa.array(seqs, pa.uint64())}).replace_schema_metadata(told)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        return bytes(sink.getvalue().to_pybytes())


class _Deleted(Wire):
    """Somebody has deleted the topic since."""

    def __init__(self) -> None:
        super().__init__("http://test", None)

    def arrow(self, path: str, value: object) -> bytes:
        raise AnswerError(404, "topic_not_found", "no such topic")


def _read(on_data_loss: str, server: Wire | None = None) -> list[Any]:
    task = Task(server or _Server(), Projection(pa.schema([("seq", pa.int64())])), (), on_data_loss)
    return [seq for batch in read_split(task, _SPLIT) for seq in batch.column(0).to_pylist()]


def test_what_is_skipped_while_it_is_read_is_said_by_the_task(caplog: pytest.LogCaptureFixture) -> None:
    assert _read("skip") == list(range(15, 21))
    (said,) = caplog.messages
    assert said.startswith("topic 't' has lost seqs 11..14 (cap) during the read")


def test_what_is_lost_while_it_is_read_fails_or_is_a_row(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLossError, match=r"topic 't' has lost seqs 11\.\.14 \(cap\)"):
        _read("fail")
    assert _read("rows") == [14, *range(15, 21)]
    assert caplog.messages == []


def test_what_may_have_been_lost_in_a_crash_is_called_up_to() -> None:
    """proves: G-TOMB-9"""
    said = str(loss("t", [SeqGap(4, 256, "crash", at_most=True)]))
    assert said.startswith("topic 't' may have lost up to all of seqs 4..256 (crash) before they were read")
    both = str(loss("t", [SeqGap(1, 2, "cap"), SeqGap(4, 256, "crash", at_most=True)]))
    assert both.startswith("topic 't' has lost seqs 1..2 (cap), up to all of seqs 4..256 (crash) before")


def test_a_topic_that_is_deleted_while_it_is_read_is_a_loss() -> None:
    with pytest.raises(DataLossError, match=r"topic 't' has lost seqs 11\.\.20 \(recreated\)"):
        _read("fail", _Deleted())
    assert _read("rows", _Deleted()) == [20]
    assert _read("skip", _Deleted()) == []


def test_records_of_another_life_are_not_taken_for_those_that_were_lost() -> None:
    """The server came back from a crash with a lower head and the same epoch, and has new records below the cursor."""
    again = _Server(1, 0, "recreated")
    with pytest.raises(DataLossError, match=r"topic 't' has lost seqs 11\.\.20 \(recreated\)"):
        _read("fail", again)
    assert _read("rows", again) == [20]
    assert _read("skip", again) == []


class _Shorter(_Server):
    """The log ends at 15 by now."""

    def arrow(self, path: str, value: object) -> bytes:
        told = {"epoch": "1", "tombstone": "", "next_from_seq": "15", "caught_up": "true"}
        return self._stream(range(11, 16), told)


def test_a_log_that_ends_before_what_was_planned_has_lost_the_rest() -> None:
    with pytest.raises(DataLossError, match=r"topic 't' has lost seqs 16\.\.20 \(recreated\)"):
        _read("fail", _Shorter())
    assert _read("rows", _Shorter()) == [*range(11, 16), 20]
