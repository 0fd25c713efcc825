"""A stream's offsets without Spark: how far the next batch goes, and what is said of lives and losses."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from driftq.pipeline import DataLossError, PipelineError
from driftq.pipeline.server_connection import AnswerError, Wire
from driftq.pipeline.source import data_source as source
from driftq.pipeline.source.data_source import StreamReader
from driftq.pipeline.source.read_columns import Projection
from driftq.pipeline.source.read_options import parse
from driftq.pipeline.source.split_reader import Task


class _Server(Wire):
    """Topics by name: epoch, head, earliest."""

    def __init__(self, **topics: tuple[int, int, int]) -> None:
        super().__init__("http://test", None)
        self.topics = topics
        self.record_bytes = 10

    def get(self, path: str) -> dict[str, Any]:
        if path.startswith("/v0/topics?"):
            return {"topics": [{"topic": name} for name in self.topics]}
        name = path.partition("?")[0].split("/")[3]
        if name not in self.topics:
            raise AnswerError(404, "topic_not_found", "no such topic")
        epoch, head, earliest = self.topics[name]
        return {
            "topic": name,
            "epoch": epoch,
            "head_seq": head,
            "earliest_seq": earliest,
            "evict_floor": earliest,
            "holes": [],
            "server_id": "s",
            "hot_root": "/h",
            "cold_root": None,
            "segments": [],
            "bytes": self.record_bytes * head,
            "count": head,
        }

    def post(self, path: str, value: object) -> dict[str, Any]:
        return {"tombstone": {"reason": "cap"}, "records": [], "head_seq": 0}


def _reader(server: _Server, **options: str) -> StreamReader:
    asked = parse({"topic": "t"} | options if "topicPattern" not in options else options)
    return StreamReader(asked, Task(server, Projection(pa.schema([])), (), asked.on_data_loss), None)


def _at(epoch: int, seq: int, began: int = 0, server_id: str = "s", **more: int) -> dict[str, Any]:
    return {"epoch": epoch, "seq": seq, "began": began, "server_id": server_id, **more}


def test_a_batch_ends_at_the_head_or_at_the_limit() -> None:
    reader = _reader(_Server(t=(1, 100, 1)), maxRecordsPerTrigger="30")
    assert reader.getDefaultReadLimit() == ReadMaxRows(30)
    assert reader.initialOffset() == {"t": _at(1, 0)}
    assert reader.latestOffset(reader.initialOffset(), ReadMaxRows(30)) == {"t": _at(1, 30)}
    assert reader.latestOffset({"t": _at(1, 30)}, ReadAllAvailable()) == {"t": _at(1, 100)}
    assert reader.latestOffset({"t": _at(1, 100)}, ReadAllAvailable()) == {"t": _at(1, 100)}


def test_a_batch_ends_where_its_bytes_would_be_too_many() -> None:
    reader = _reader(_Server(t=(1, 100, 1)), maxBytesPerTrigger="305")
    assert reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit()) == {"t": _at(1, 30)}
    both = _reader(_Server(t=(1, 100, 1)), maxBytesPerTrigger="305", maxRecordsPerTrigger="7")
    assert both.latestOffset(both.initialOffset(), both.getDefaultReadLimit()) == {"t": _at(1, 7)}
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable()) == {"t": _at(1, 100)}


def test_the_first_offset_is_the_same_whenever_it_is_asked_for() -> None:
    server = _Server(t=(1, 100, 1))
    reader = _reader(server, startingSeq="latest")
    assert reader.initialOffset() == {"t": _at(1, 100, began=100)}
    server.topics["t"] = (1, 200, 1)
    assert reader.initialOffset() == {"t": _at(1, 100, began=100)}
    assert reader.reportLatestOffset()["t"]["seq"] == 200


def test_available_now_ends_where_the_topic_did_when_it_began() -> None:
    server = _Server(t=(1, 100, 1))
    reader = _reader(server)
    reader.prepareForTriggerAvailableNow()
    server.topics |= {"t": (1, 500, 1)}
    assert reader.latestOffset({"t": _at(1, 40)}, ReadMaxRows(1000)) == {"t": _at(1, 100)}


def test_a_topic_that_comes_later_joins_a_pattern() -> None:
    server = _Server(a=(1, 10, 1))
    reader = _reader(server, topicPattern="a|b")
    server.topics["b"] = (2, 5, 3)
    found = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert found == {"a": _at(1, 10), "b": _at(2, 5, began=2)}


def test_of_a_topic_that_comes_later_all_that_it_had_is_wanted() -> None:
    """It was not there when the query began, so nothing of it was lost before."""
    server = _Server(a=(1, 10, 1))
    reader = _reader(server, topicPattern="a|b")
    first = reader.initialOffset()
    server.topics["b"] = (2, 5, 3)
    found = reader.latestOffset(first, ReadAllAvailable())
    assert found == {"a": _at(1, 10), "b": _at(2, 5)}
    with pytest.raises(DataLossError, match=r"topic 'b' has lost seqs 1\.\.2 \(cap\)"):
        reader.partitions(first, found)


def test_a_topic_that_comes_later_begins_at_the_seq_that_was_asked_for() -> None:
    server = _Server(a=(1, 10, 1))
    reader = _reader(server, topicPattern="a|b", startingSeq="4")
    first = reader.initialOffset()
    server.topics["b"] = (2, 5, 1)
    found = reader.latestOffset(first, ReadAllAvailable())
    assert found == {"a": _at(1, 10, began=3), "b": _at(2, 5, began=3)}


def test_a_topic_that_is_no_longer_named_stays_where_it_was_left() -> None:
    server = _Server(t=(1, 10, 1), u=(1, 10, 1))
    places = {"t": _at(1, 4), "u": _at(1, 4)}
    assert _reader(server).latestOffset(places, ReadAllAvailable()) == {"t": _at(1, 10), "u": _at(1, 4)}
    pattern = _reader(server, topicPattern="t+")
    assert pattern.latestOffset(places, ReadAllAvailable()) == {"t": _at(1, 10), "u": _at(1, 4)}
    del server.topics["u"]
    assert _reader(server).latestOffset(places, ReadAllAvailable()) == {"t": _at(1, 10), "u": _at(1, 4)}


@pytest.mark.parametrize("head", [0, 4])
def test_a_head_that_goes_back_is_another_life(head: int) -> None:
    server = _Server(t=(1, head, 1))
    with pytest.raises(DataLossError, match="earlier topic of this name"):
        _reader(server).latestOffset({"t": _at(1, 50)}, ReadAllAvailable())
    skipping = _reader(server, onDataLoss="skip")
    end = skipping.latestOffset({"t": _at(1, 50)}, ReadAllAvailable())
    assert end == {"t": _at(1, head, lost=1)}
    assert sum(each.value.size for each in skipping.partitions({"t": _at(1, 50)}, end)) == head
    assert skipping.latestOffset(end, ReadAllAvailable()) == end


def test_a_topic_of_another_server_is_another_life() -> None:
    """A data directory that is lost, or restored from a backup: epochs and seqs may well fit."""
    server = _Server(t=(1, 80, 1))
    left = {"t": _at(1, 50, server_id="before")}
    with pytest.raises(DataLossError, match="earlier topic of this name"):
        _reader(server).latestOffset(left, ReadAllAvailable())
    skipping = _reader(server, onDataLoss="skip")
    end = skipping.latestOffset(left, ReadAllAvailable())
    assert end == {"t": _at(1, 80, lost=1)}
    assert sum(each.value.size for each in skipping.partitions(left, end)) == 80
    logged = {"t": _at(1, 70, server_id="before")}
    with pytest.raises(DataLossError, match=r"seqs 51\.\.70 \(recreated\)"):
        _reader(server).partitions(left, logged)


def test_an_offset_that_does_not_know_its_server_is_gone_on_with() -> None:
    server = _Server(t=(1, 80, 1))
    left = {"t": {"epoch": 1, "seq": 50, "began": 0}}
    assert _reader(server).latestOffset(left, ReadAllAvailable()) == {"t": _at(1, 80)}
    server.topics["t"] = (1, 50, 1)
    assert _reader(server).latestOffset(left, ReadAllAvailable()) == left, "nothing new, so no batch"


def test_a_start_above_the_head_is_waited_for() -> None:
    server = _Server(t=(1, 10, 1))
    reader = _reader(server, startingSeq="51")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start == {"t": _at(1, 50, began=50)}


@pytest.mark.parametrize("start", ["latest", "earliest", "51"])
def test_a_query_that_has_read_nothing_yet_notices_another_life_too(start: str) -> None:
    """It stood at the head, which is lower now: what comes is below the place that it waits at."""
    server = _Server(t=(1, 50, 51))
    reader = _reader(server, startingSeq=start, onDataLoss="skip")
    left = reader.initialOffset()
    assert left == {"t": _at(1, 50, began=50)}
    server.topics["t"] = (1, 20, 1)
    end = reader.latestOffset(left, ReadAllAvailable())
    assert end == {"t": _at(1, 20, lost=1)}
    assert sum(each.value.size for each in reader.partitions(left, end)) == 20


def test_a_batch_that_was_planned_beyond_the_head_of_now_is_lost() -> None:
    server = _Server(t=(1, 30, 1))
    with pytest.raises(DataLossError, match=r"seqs 11\.\.50 \(recreated\)"):
        _reader(server).partitions({"t": _at(1, 10)}, {"t": _at(1, 50)})


def test_a_batch_goes_over_a_gap_at_once_whatever_its_limit() -> None:
    server = _Server(t=(1, 20_000, 19_991))
    end = _reader(server, onDataLoss="skip").latestOffset({"t": _at(1, 10)}, ReadMaxRows(4))
    assert end == {"t": _at(1, 19_994, lost=19_980)}
    server.topics["t"] = (1, 20_000, 20_001)
    end = _reader(server, onDataLoss="skip").latestOffset({"t": _at(1, 10)}, ReadMaxRows(4))
    assert end == {"t": _at(1, 20_000, lost=19_990)}


def test_places_on_another_server_than_the_sessions_say_so() -> None:
    server = _Server(t=(1, 10, 1))
    asked = parse({"topic": "t"})
    task = Task(server, Projection(pa.schema([])), (), asked.on_data_loss)
    reader = StreamReader(asked, task, None, "http://b:4000")
    start = reader.initialOffset()
    assert start == {"t": {**_at(1, 0), "server": "http://b:4000"}}
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {"t": {**_at(1, 10), "server": "http://b:4000"}}
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert len(reader.partitions(start, end)) == 1


def test_another_life_fails_is_told_or_is_counted() -> None:
    server = _Server(t=(2, 4, 1))
    with pytest.raises(DataLossError, match="earlier topic of this name"):
        _reader(server).latestOffset({"t": _at(1, 50)}, ReadAllAvailable())
    skipping = _reader(server, onDataLoss="skip")
    assert skipping.latestOffset({"t": _at(1, 50)}, ReadAllAvailable()) == {"t": _at(2, 4, lost=1)}
    (split,) = (
        each.value for each in _reader(server, onDataLoss="rows").partitions({"t": _at(1, 50)}, {"t": _at(2, 4)})
    )
    assert [(gap.first, gap.reason) for gap in split.gaps] == [(51, "recreated")]
    assert split.size == 4


def test_a_journaled_batch_of_a_life_that_is_over_is_lost() -> None:
    server = _Server(t=(2, 4, 1))
    with pytest.raises(DataLossError, match=r"seqs 11\.\.50 \(recreated\)"):
        _reader(server).partitions({"t": _at(1, 10)}, {"t": _at(1, 50)})
    assert _reader(server, onDataLoss="skip").partitions({"t": _at(1, 10)}, {"t": _at(1, 50)}) == []


def test_evicted_seqs_are_counted_where_they_are_skipped() -> None:
    server = _Server(t=(1, 100, 61))
    found = _reader(server, onDataLoss="skip").latestOffset({"t": _at(1, 50)}, ReadAllAvailable())
    assert found == {"t": _at(1, 100, lost=10)}
    with pytest.raises(DataLossError, match=r"topic 't' has lost seqs 51\.\.60 \(cap\)"):
        _reader(server).partitions({"t": _at(1, 50)}, {"t": _at(1, 100)})


def test_what_is_taken_between_the_offset_and_the_plan_is_counted_in_the_next_batch() -> None:
    server = _Server(t=(1, 100, 61))
    reader = _reader(server, onDataLoss="skip")
    start = {"t": _at(1, 50)}
    end = reader.latestOffset(start, ReadAllAvailable())
    server.topics["t"] = (1, 100, 81)
    for _ in range(2):
        reader.partitions(start, end)
    assert reader.latestOffset(end, ReadAllAvailable()) == end == {"t": _at(1, 100, lost=10)}
    server.topics["t"] = (1, 120, 81)
    after = reader.latestOffset(end, ReadAllAvailable())
    assert after == {"t": _at(1, 120, lost=30)}
    reader.partitions(end, after)
    server.topics["t"] = (1, 130, 81)
    assert reader.latestOffset(after, ReadAllAvailable()) == {"t": _at(1, 130, lost=30)}


def test_losses_that_are_rows_are_not_counted_besides() -> None:
    server = _Server(t=(1, 100, 61))
    reader = _reader(server, onDataLoss="rows")
    start, end = {"t": _at(1, 50)}, {"t": _at(1, 100)}
    reader.partitions(start, end)
    server.topics["t"] = (1, 110, 61)
    assert reader.latestOffset(end, ReadAllAvailable()) == {"t": _at(1, 110)}


def test_what_a_life_has_lost_before_it_ended_is_counted_in_the_next_one() -> None:
    server = _Server(t=(1, 100, 1))
    reader = _reader(server, onDataLoss="skip")
    start, end = {"t": _at(1, 50)}, {"t": _at(1, 100)}
    server.topics["t"] = (2, 4, 1)
    assert reader.partitions(start, end) == []
    assert reader.latestOffset(end, ReadAllAvailable()) == {"t": _at(2, 4, lost=51)}


def test_a_topic_that_is_not_there_is_said_by_name() -> None:
    with pytest.raises(PipelineError, match="there is no topic 't'"):
        _reader(_Server()).initialOffset()


def test_a_topic_that_went_is_waited_for_a_moment_and_then_said(monkeypatch: pytest.MonkeyPatch) -> None:
    server, start = _Server(), {"t": _at(1, 50)}
    reader = _reader(server)
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    server.topics["t"] = (1, 60, 1)
    assert reader.latestOffset(start, ReadAllAvailable()) == {"t": _at(1, 60)}
    del server.topics["t"]
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    monkeypatch.setattr(source, "GONE_S", 0.0)
    with pytest.raises(DataLossError, match="topic 't' was deleted after seq 50 was read"):
        reader.latestOffset(start, ReadAllAvailable())


def test_a_query_that_ends_by_itself_does_not_wait_for_a_topic_that_went() -> None:
    reader = _reader(_Server())
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match="topic 't' was deleted"):
        reader.latestOffset({"t": _at(1, 50)}, ReadAllAvailable())


@pytest.mark.parametrize("how", ["skip", "rows"])
def test_who_can_do_without_goes_on_without_a_topic_that_went_and_it_is_said_once(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(source, "GONE_S", 0.0)
    server = _Server(b=(1, 10, 1))
    reader = _reader(server, topicPattern="a|b", onDataLoss=how)
    start = {"a": _at(1, 50), "b": _at(1, 0)}
    for _ in range(2):
        assert reader.latestOffset(start, ReadAllAvailable()) == {"a": _at(1, 50), "b": _at(1, 10)}
    assert [said.partition(":")[0] for said in caplog.messages] == ["topic 'a' was deleted after seq 50 was read"]
