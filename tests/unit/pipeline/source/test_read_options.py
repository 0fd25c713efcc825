"""The options of a read: what they mean, and what is said of those that mean nothing."""

import pytest

from driftq.pipeline import PipelineError
from driftq.pipeline.jobs.topic_selection import source_options
from driftq.pipeline.source.read_options import api_key_of, check_names, check_stream, parse, patience_of


def test_the_server_is_the_option_else_the_sessions_else_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIFTQ_URL", "http://env:1")
    assert parse({"topic": "t", "server": "http://option:1"}, server="http://session:1").server == "http://option:1"
    assert parse({"topic": "t"}, server="http://session:1").server == "http://session:1"
    assert parse({"topic": "t"}).server == "http://env:1"
    monkeypatch.delenv("DRIFTQ_URL")
    assert parse({"topic": "t"}).server == "http://127.0.0.1:4000"


def test_the_key_is_the_option_else_the_sessions_else_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIFTQ_API_KEY", "env")
    assert api_key_of({"apiKey": "option"}, "session") == "option"
    assert api_key_of({}, "session") == "session"
    assert api_key_of({}, None) == "env"


def test_a_key_with_the_end_of_its_line_is_that_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIFTQ_API_KEY", "key\n")
    assert api_key_of({}, None) == "key"
    assert api_key_of({"apiKey": " other "}, None) == "other"


def test_topics_are_named_in_one_way() -> None:
    assert parse({"topics": "a, b,a"}).topics == ("a", "b")
    assert parse({"topic": "a,b"}).topics == ("a,b",)
    assert parse({"topicPattern": "orders-.*"}).pattern == "orders-.*"
    for wrong in ({}, {"topic": "a", "topics": "b"}, {"topics": " , "}):
        with pytest.raises(PipelineError, match="topic"):
            parse(wrong)


def test_topics_of_the_broker_are_named_by_prefix_or_by_api() -> None:
    assert parse({"topic": "@runs"}).with_v1
    asked = parse({"topics": "runs,a b", "api": "v1"})
    assert asked.topics == ("@runs", "@a%20b")
    assert parse({"topic": "@a%20b", "api": "v1"}).topics == ("@a%20b",)
    assert asked.with_v1
    assert parse({"topicPattern": "runs.*", "api": "v1"}).pattern == "@(?:runs.*)"
    assert parse(source_options(["orders", "@runs.*"])).with_v1
    assert not parse(source_options(["orders.*"])).with_v1


def test_a_start_is_a_word_a_number_a_map_or_a_time() -> None:
    assert parse({"topic": "t"}).start == "earliest"
    assert parse({"topic": "t", "startingSeq": "17"}).start == {"*": 17}
    assert parse({"topic": "t", "startingSeq": '{"t": 4}'}).start == {"t": 4}
    assert parse({"topic": "t", "startingTimestamp": "1700000000000"}).start_ts == {"*": 1_700_000_000_000}
    assert parse({"topic": "t", "startingTimestamp": "2023-11-14T22:13:20Z"}).not_before == 1_700_000_000_000
    assert parse({"topic": "t", "endingTimestamp": "2023-11-14T22:13:20"}).end_ts == 1_700_000_000_000


def test_a_map_of_starts_names_topics_that_are_read() -> None:
    assert parse({"topic": "runs", "api": "v1", "startingSeq": '{"runs": 4, "*": 2}'}).start == {"@runs": 4, "*": 2}
    assert parse({"topicPattern": "a.*", "startingSeq": '{"ab": 4}'}).start == {"ab": 4}
    for options in ({"topic": "f"}, {"topics": "f,g"}, {"topicPattern": "f+g"}):
        with pytest.raises(PipelineError, match="startingSeq names topic 'ff', which this query does not read"):
            parse({**options, "startingSeq": '{"ff": 4}'})


def test_a_time_outside_of_all_records_is_the_nearest_that_there_can_be() -> None:
    assert parse({"topic": "t", "startingTimestamp": "1960-01-01"}).not_before == 0
    assert parse({"topic": "t", "endingTimestamp": "9" * 30}).end_ts == (1 << 63) - 1


def test_a_stream_has_no_end() -> None:
    check_stream({"topic": "t", "startingSeq": "4"})
    for name in ("endingSeq", "endingTimestamp"):
        with pytest.raises(PipelineError, match=f"{name} is only for tables"):
            check_stream({"topic": "t", name: "4"})


@pytest.mark.parametrize("name", ["option.topic", "owner", "provider"])
def test_a_table_in_a_catalog_is_refused_with_what_works_instead(name: str) -> None:
    with pytest.raises(PipelineError, match="CREATE TEMPORARY VIEW"):
        parse({"topic": "t", name: "x"})


def test_who_wants_gaps_gets_them_as_rows_unless_said_otherwise() -> None:
    assert (parse({"topic": "t"}).on_data_loss, parse({"topic": "t"}).with_gaps) == ("fail", False)
    assert parse({"topic": "t", "withGaps": "true"}).on_data_loss == "rows"
    assert parse({"topic": "t", "onDataLoss": "rows"}).with_gaps
    assert parse({"topic": "t", "withGaps": "true", "onDataLoss": "fail"}).on_data_loss == "fail"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingSeqs": "1"}, "did you mean startingSeq"),
        ({"startingSeq": "soon"}, "must be earliest, latest, a seq"),
        ({"startingSeq": "-4"}, "must be earliest, latest, a seq"),
        ({"startingSeq": "1", "startingTimestamp": "1"}, "not both"),
        ({"endingTimestamp": "yesterday"}, "milliseconds or a time"),
        ({"onDataLoss": "shrug"}, "fail, rows or skip"),
        ({"withGaps": "maybe"}, "true or false"),
        ({"splitRecords": "0"}, "a number above 0"),
        ({"api": "v2"}, "v0 or v1"),
    ],
)
def test_what_is_wrong_is_said_by_name(options: dict[str, str], said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        parse({"topic": "t"} | options)


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(PipelineError, match="not a regular expression"):
        parse({"topicPattern": "("})


def test_a_write_has_options_of_its_own() -> None:
    check_names({"topic": "t", "errorTopic": "e", "createTopic": "false", "writer": "w", "batch": "1"})
    assert (patience_of({}), patience_of({"retryTimeoutMs": "2500"})) == (60.0, 2.5)
    with pytest.raises(PipelineError, match="did you mean errorTopic"):
        check_names({"erorTopic": "e"})
    with pytest.raises(PipelineError, match="retryTimeoutMs is 'soon'"):
        patience_of({"retryTimeoutMs": "soon"})
