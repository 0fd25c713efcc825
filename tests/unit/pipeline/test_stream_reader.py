"""A stream's offsets without Spark: how far the next batch goes, and what is said of lives and losses."""

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from driftq.pipeline import DataLossError, PipelineError
from driftq.pipeline.offsets import TopicOffset, decode, encode
from driftq.pipeline.server_connection import Wire
from driftq.pipeline.source import stream_reader as source
from driftq.pipeline.source.read_columns import Projection
from driftq.pipeline.source.read_options import parse
from driftq.pipeline.source.split_reader import Task
from driftq.pipeline.source.stream_reader import StreamReader


class _Server(Wire):
    """Topics by name: epoch, head, earliest. All records from the earliest on are live, but those in `deleted`."""

    def __init__(self, **topics: tuple[int, int, int]) -> None:
        super().__init__("http://test", None)
        self.topics = topics
        self.deleted: dict[str, set[int]] = {}
        self.record_bytes = 10
        self.asked: list[Any] = []

    def check(self) -> None:
        """It is there."""

    def _live(self, name: str) -> list[int]:
        _, head, earliest = self.topics[name]
        return [seq for seq in range(earliest, head + 1) if seq not in self.deleted.get(name, ())]

    def _row(self, name: str) -> dict[str, Any]:
        epoch, head, earliest = self.topics[name]
        count = len(self._live(name))
        return {
            "topic": name,
            "epoch": epoch,
            "head_seq": head,
            "earliest_seq": earliest,
            "evict_floor": earliest,
            "holes": [],
            "segments": [],
            "bytes": self.record_bytes * count,
            "count": count,
            "last_ts": 1000 * head or None,
        }

    def post(self, path: str, value: Any) -> dict[str, Any]:
        if path != "/v0/segments":
            return {"tombstone": {"reason": "cap"}, "records": [], "head_seq": 0}
        self.asked.append(value)
        names = sorted(value.get("topics", [name for name in self.topics if name.startswith(value.get("prefix", ""))]))
        rows = [self._row(name) for name in names if name in self.topics]
        for row in rows:
            if row["topic"] in value.get("after", {}):
                after = value["after"][row["topic"]]
                live = [seq for seq in self._live(row["topic"]) if seq > after["seq"]][: after["records"]]
                row["reach_seq"] = live[-1] if len(live) == after["records"] else row["head_seq"]
        return {"server_id": "s", "hot_root": "/h", "cold_root": None, "topics": rows}


class _Places(StreamReader):
    """Takes and gives offsets as places by topic, in the form of earlier versions, which a person can read."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return _shown(super().initialOffset())

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return _shown(super().reportLatestOffset())

    def latestOffset(self, start: Any, limit: Any) -> dict[str, Any]:  # noqa: N802
        return _shown(super().latestOffset(_stored(start), limit))

    def partitions(self, start: Any, end: Any) -> list[Any]:
        return [split for task in super().partitions(_stored(start), _stored(end)) for split in task.value]


def _shown(offset: dict[str, Any]) -> dict[str, Any]:
    kept = ("epoch", "seq", "began", "server_id")
    return {
        name: {key: value for key, value in place._asdict().items() if value or key in kept}
        for name, place in decode(json.loads(json.dumps(offset))).items()
    }


def _kept(place: dict[str, Any]) -> dict[str, Any]:
    return dict(place) if place.get("began") is not None or place["seq"] else {**place, "began": 0}


def _stored(offset: dict[str, Any]) -> dict[str, Any]:
    return encode({name: TopicOffset(**_kept(place)) for name, place in offset.items()})


def _reader(server: _Server, **options: str) -> _Places:
    asked = parse({"topic": "t"} | options if not options.keys() & {"topicPattern", "subscribe"} else options)
    return _Places(asked, Task(server, Projection(pa.schema([])), (), asked.on_data_loss), None)


class _Place(dict[str, Any]):
    """A place that is equal to another wherever that began, unless it names a beginning itself."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and dict(self) == dict(other) | (
            {"began": None} if self["began"] is None else {}
        )

    __hash__ = None


def _at(epoch: int, seq: int, began: int | None = None, server_id: str = "s", **more: Any) -> dict[str, Any]:
    return _Place(epoch=epoch, seq=seq, began=began, server_id=server_id, **more)


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
    assert sum(each.size for each in skipping.partitions({"t": _at(1, 50)}, end)) == head
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
    assert sum(each.size for each in skipping.partitions(left, end)) == 80
    logged = {"t": _at(1, 70, server_id="before")}
    with pytest.raises(DataLossError, match=r"seqs 51\.\.70 \(recreated\)"):
        _reader(server).partitions(left, logged)


def test_an_offset_that_does_not_know_its_server_is_gone_on_with() -> None:
    server = _Server(t=(1, 80, 1))
    left = {"t": _at(1, 50, server_id="")}
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
    assert sum(each.size for each in reader.partitions(left, end)) == 20


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
    asked = parse({"topic": "t", "kafka.group.id": "billing"})
    task = Task(server, Projection(pa.schema([])), (), asked.on_data_loss)
    reader = StreamReader(asked, task, None, "http://b:4000")
    start = reader.initialOffset()
    assert start[""] == {"server": "http://b:4000", "server_id": "s", "cursor": "billing"}
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {"": start[""], "t@1": {"seq": 10, "began": 0}}
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert len(reader.partitions(start, end)) == 1


def test_a_limit_of_records_counts_live_ones_and_a_limit_of_offsets_all() -> None:
    server = _Server(t=(1, 60_000, 1))
    server.deleted["t"] = {seq for seq in range(1, 60_001) if seq % 1000}
    reader = _reader(server, maxRecordsPerTrigger="100")
    assert reader.latestOffset({"t": _at(1, 0)}, reader.getDefaultReadLimit()) == {"t": _at(1, 60_000)}
    reader = _reader(server, maxRecordsPerTrigger="25")
    assert reader.latestOffset({"t": _at(1, 0)}, reader.getDefaultReadLimit()) == {"t": _at(1, 25_000)}
    assert reader.latestOffset({"t": _at(1, 25_000)}, reader.getDefaultReadLimit()) == {"t": _at(1, 50_000)}
    assert reader.latestOffset({"t": _at(1, 50_000)}, reader.getDefaultReadLimit()) == {"t": _at(1, 60_000)}
    reader = _reader(server, maxOffsetsPerTrigger="25")
    assert reader.latestOffset({"t": _at(1, 0)}, reader.getDefaultReadLimit()) == {"t": _at(1, 25)}
    both = _reader(server, maxOffsetsPerTrigger="9000", maxRecordsPerTrigger="5")
    assert both.latestOffset({"t": _at(1, 0)}, both.getDefaultReadLimit()) == {"t": _at(1, 5000)}


def test_a_stream_without_options_has_a_limit_of_bytes() -> None:
    server = _Server(t=(1, 2000, 1))
    server.record_bytes = 1 << 20
    reader = _reader(server)
    assert reader.latestOffset({"t": _at(1, 0)}, reader.getDefaultReadLimit()) == {"t": _at(1, 256)}
    assert reader.latestOffset({"t": _at(1, 0)}, ReadAllAvailable()) == {"t": _at(1, 2000)}
    chosen = _reader(server, maxRecordsPerTrigger="900")
    assert chosen.latestOffset({"t": _at(1, 0)}, chosen.getDefaultReadLimit()) == {"t": _at(1, 900)}


def test_a_batch_waits_for_as_many_offsets_as_it_should_have_but_not_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("driftq.pipeline.source.stream_reader.time.monotonic", lambda: now[0])
    server = _Server(t=(1, 3, 1))
    reader = _reader(server, minOffsetsPerTrigger="10", maxTriggerDelay="30s")
    first = reader.latestOffset({"t": _at(1, 0)}, ReadAllAvailable())
    assert first == {"t": _at(1, 3)}, "the first batch does not wait"
    server.topics["t"] = (1, 9, 1)
    assert reader.latestOffset(first, ReadAllAvailable()) == first
    now[0] += 29.0
    assert reader.latestOffset(first, ReadAllAvailable()) == first
    now[0] += 1.0
    late = reader.latestOffset(first, ReadAllAvailable())
    assert late == {"t": _at(1, 9)}
    server.topics["t"] = (1, 19, 1)
    assert reader.latestOffset(late, ReadAllAvailable()) == {"t": _at(1, 19)}
    ends = _reader(server, minOffsetsPerTrigger="100")
    ends.prepareForTriggerAvailableNow()
    for start in (3, 9):
        assert ends.latestOffset({"t": _at(1, start)}, ReadAllAvailable()) == {"t": _at(1, 19)}


def test_a_trigger_over_a_thousand_topics_asks_the_server_once() -> None:
    server = _Server(**{f"t{number}": (number + 1, 1, 1) for number in range(1000)})
    reader = _reader(server, topicPattern="t[0-9]+")
    start = reader.initialOffset()
    server.asked.clear()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    reader.reportLatestOffset()
    tasks = StreamReader.partitions(reader, encode(decode(_stored(start))), _stored(end))
    assert server.asked == [{"prefix": "t", "page_size": 1000}]
    assert [len(task.value) for task in tasks] == [250, 250, 250, 250]


def test_a_batch_that_is_planned_again_after_a_restart_asks_for_its_topics() -> None:
    server = _Server(a=(1, 5, 1), b=(1, 5, 1), c=(1, 5, 1))
    reader = _reader(server, topicPattern=".*")
    start, end = {name: _at(1, 5) for name in "abc"}, {"a": _at(1, 5), "b": _at(1, 5), "c": _at(1, 5)}
    server.topics["b"] = (1, 9, 1)
    assert [split.topic for split in reader.partitions(start, end | {"b": _at(1, 9)})] == ["b"]
    assert server.asked == [{"topics": ["b"]}]


def test_a_pattern_that_matches_nothing_is_an_error_unless_it_is_allowed() -> None:
    with pytest.raises(PipelineError, match=r"no topic on http://test matches 'z\+': .*allowEmpty=true"):
        _reader(_Server(a=(1, 5, 1)), topicPattern="z+").initialOffset()
    server = _Server(a=(1, 5, 1))
    reader = _reader(server, topicPattern="z+", allowEmpty="true")
    assert reader.initialOffset() == {}
    server.topics["z"] = (2, 4, 1)
    assert reader.latestOffset({}, ReadAllAvailable()) == {"z": _at(2, 4)}


def test_a_start_at_a_time_without_records_is_what_the_strategy_says() -> None:
    server = _Server(t=(1, 5, 1))
    late = {"subscribe": "t", "startingOffsetsByTimestamp": '{"t": {"0": 5001}}'}
    with pytest.raises(PipelineError, match="topic 't' has no record at 5001 ms or later"):
        _reader(server, **late).initialOffset()
    latest = _reader(server, **late, startingOffsetsByTimestampStrategy="latest")
    assert latest.initialOffset() == {"t": _at(1, 5, began=5)}


def test_another_life_fails_is_told_or_is_counted() -> None:
    server = _Server(t=(2, 4, 1))
    with pytest.raises(DataLossError, match="earlier topic of this name"):
        _reader(server).latestOffset({"t": _at(1, 50)}, ReadAllAvailable())
    skipping = _reader(server, onDataLoss="skip")
    assert skipping.latestOffset({"t": _at(1, 50)}, ReadAllAvailable()) == {"t": _at(2, 4, lost=1)}
    (split,) = (each for each in _reader(server, onDataLoss="rows").partitions({"t": _at(1, 50)}, {"t": _at(2, 4)}))
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
