"""The options of Spark's Kafka source: Kafka's meaning, in terms of a topic with one partition."""

from typing import Any

import pytest

from driftq.pipeline import PipelineError
from driftq.pipeline.source.read_options import BATCH_BYTES, ReadOptions, check_names, check_stream, parse
from driftq.pipeline.source.topic_listing import literal_start


def _parse(**options: str) -> ReadOptions:
    return parse({"subscribe": "a,b"} | options)


def test_topics_are_subscribed_to_by_name_or_by_pattern() -> None:
    assert _parse().topics == ("a", "b")
    assert parse({"subscribePattern": "orders-.*"}).pattern == "orders-.*"
    for options in ({"subscribe": "a", "subscribePattern": "b"}, {"subscribe": "a", "topic": "b"}):
        with pytest.raises(PipelineError, match="exactly one of the options"):
            parse(options)
    with pytest.raises(PipelineError, match="subscribe and topics mean the same"):
        parse({"subscribe": "a", "topics": "b"})


def test_starts_are_inclusive_and_ends_are_not() -> None:
    asked = _parse(startingOffsets='{"a": {"0": 17}, "b": {"0": -1}}', endingOffsets='{"a": {"0": 50}, "b": {"0": -1}}')
    assert (asked.start, asked.end) == ({"a": 17, "b": "latest"}, {"a": 49, "b": "latest"})
    assert parse({"topic": "a", "startingSeq": "17"}).start == {"*": 17}, "the first seq wanted, as in Kafka"
    assert _parse(startingOffsets='{"a": {"0": -2}}').start == {"a": "earliest"}
    assert (_parse(startingOffsets="latest").start, _parse(endingOffsets="latest").end) == ("latest", "latest")
    with pytest.raises(PipelineError, match="endingOffsets is only for tables"):
        check_stream({"subscribe": "a", "endingOffsets": "latest"})


def test_times_are_given_by_topic_and_win_over_offsets() -> None:
    times = '{"a": {"0": 1000}, "b": {"0": 2000}}'
    asked = _parse(startingOffsetsByTimestamp=times, startingOffsets="latest")
    assert (asked.start_ts, asked.start, asked.late_start_fails) == ({"a": 1000, "b": 2000}, "earliest", True)
    assert asked.not_before is None, "in Kafka, the time chooses an offset, and later records are not compared with it"
    assert _parse(startingTimestamp="7", startingOffsetsByTimestamp=times).start_ts == {"*": 7}
    with pytest.raises(PipelineError, match="startingOffsetsByTimestamp does not name topic 'b'"):
        _parse(startingOffsetsByTimestamp='{"a": {"0": 1000}}')


def test_limits_losses_headers_and_the_group_are_options() -> None:
    asked = _parse(
        maxOffsetsPerTrigger="5",
        minOffsetsPerTrigger="2",
        maxTriggerDelay="2m",
        minPartitions="8",
        **{"failOnDataLoss": "false", "includeHeaders": "true", "kafka.group.id": "billing"},
    )
    assert (asked.max_offsets, asked.min_offsets, asked.trigger_delay_s, asked.min_partitions) == (5, 2, 120, 8)
    assert (asked.on_data_loss, asked.with_headers, asked.cursor) == ("skip", True, "billing")
    assert (_parse(failOnDataLoss="TRUE").on_data_loss, _parse().trigger_delay_s) == ("fail", 900)
    assert (_parse().max_bytes, asked.max_bytes, _parse(maxBytesPerTrigger="9").max_bytes) == (BATCH_BYTES, None, 9)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffsets": "soon"}, r'startingOffsets is .soon. and must be JSON like \{"orders": \{"0": 23\}\}'),
        ({"startingOffsets": '{"a": {"1": 5}}'}, "the one partition 0"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "numbers are from -2 on"),
        ({"startingOffsets": '{"a": 5}'}, "must be JSON like"),
        ({"startingOffsets": "[]"}, "must be JSON like"),
        ({"endingOffsets": "earliest"}, "must be JSON like"),
        ({"endingOffsets": '{"a": {"0": -2}}'}, "numbers are from -1 on"),
        ({"startingOffsets": '{"c": {"0": 5}}'}, "names topic 'c', which this query does not read"),
        ({"startingOffsets": "latest", "startingSeq": "4"}, "startingOffsets and startingSeq mean the same"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss is 'no' and must be true or false"),
        ({"failOnDataLoss": "true", "onDataLoss": "skip"}, "mean the same"),
        ({"includeHeaders": "1"}, "includeHeaders is '1' and must be true or false"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay is 'soon' and must be a time like 30s"),
        ({"minPartitions": "none"}, "a number above 0"),
        ({"startingOffsetsByTimestampStrategy": "x"}, "must be error or latest"),
        ({"maxOffsetPerTrigger": "1"}, "did you mean maxOffsetsPerTrigger"),
        ({"kafka.bootstrap.servers": "h:9092"}, "name the server with option server"),
        ({"assign": "{}"}, "use subscribe"),
    ],
)
def test_what_kafka_would_refuse_is_refused_by_name(options: dict[str, str], said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        _parse(**options)


def test_a_table_in_sql_may_have_options_of_both_directions() -> None:
    check_names({"subscribe": "a", "errorTopic": "e", "KAFKA.GROUP.ID": "g"})


@pytest.mark.parametrize(
    ("pattern", "start"),
    [
        *(("orders-.*", "orders-"), ("orders*", "order"), ("a|b", ""), ("ab(c|d)", ""), ("", "")),
        *((r"a\.b.*", "a.b"), (r"a\.?", "a"), (r"a\d+", "a"), ("@(?:runs.*)", "@"), ("ab+", "ab"), ("x{0,3}y", "")),
        *(("(?i)a", ""), ("^a", ""), (".*", "")),
    ],
)
def test_the_names_that_a_pattern_matches_start_with_its_literal_text(pattern: str, start: Any) -> None:
    assert literal_start(pattern) == start
