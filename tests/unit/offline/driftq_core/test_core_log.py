"""The log of driftq-core: what its lines mean, and what is not such a log."""

import base64
from typing import Any

import pytest
from msgspec import json

from driftq.model.message import DlqNote, Envelope, Message, RetryPolicy, Routing
from driftq.offline.driftq_core.core_log import CoreLogError, CoreRetry, message_of, moment, plan, read_lines


def line(kind: int, topic: str = "t", **fields: Any) -> bytes:
    """One line as the Go broker writes it: bytes in base64, zeros left out."""
    fields = {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in fields.items()
        if value
    }
    return json.encode({"type": kind, "topic": topic, **fields}) + b"\n"


def test_a_message_keeps_all_it_had() -> None:
    raw = line(
        *(1, "t"),
        partition=1,
        offset=7,
        key=b"k",
        value="wert ß".encode(),
        ts_ms=5,
        routing_label="l",
        routing_meta={"a": "b"},
        run_id="r",
        labels={"x": "y"},
        tenant_id="ta",
        retry_max_attempts=3,
        retry_backoff_ms=10,
        deadline="2099-01-01T00:00:00Z",
        idempotency_key="ik",
    )
    (found,) = read_lines([raw])
    assert message_of(found) == Message(
        "wert ß",
        "k",
        Envelope(
            run_id="r",
            labels={"x": "y"},
            tenant_id="ta",
            retry_policy=RetryPolicy(3, 10),
            deadline="2099-01-01T00:00:00Z",
            idempotency_key="ik",
        ),
        Routing("l", {"a": "b"}),
    )


def test_a_plain_message_has_neither_envelope_nor_routing() -> None:
    (found,) = read_lines([line(1, value=b"v")])
    assert (message_of(found), found.record.partition, found.record.offset) == (Message("v"), 0, 0)


def test_a_dead_letter_knows_where_it_comes_from() -> None:
    (found,) = read_lines(
        [
            line(
                1,
                "dlq.t",
                value=b"v",
                dlq_original_topic="t",
                dlq_original_offset=4,
                dlq_attempts=2,
                dlq_last_error="e",
            )
        ]
    )
    assert message_of(found).envelope == Envelope(dlq=DlqNote("t", 0, 4, 2, "e", 0, ""))


def test_a_plan_has_partitions_progress_failures_and_outcomes() -> None:
    lines = [
        line(1, value=b"a"),
        line(1, value=b"b", partition=2, offset=1),
        line(2, group="g", offset=3),
        line(2, group="g", offset=1),
        line(4, group="g", partition=2, offset=1, last_error="old", attempts=1),
        line(4, group="g", partition=2, offset=1, last_error="boom", attempts=2, next_at=99),
        line(5, group="g", idempotency_key="k", idempotency_scope="consume", idempotency_status="PENDING"),
        line(
            5, group="g", idempotency_key="c", idempotency_scope="consume", idempotency_status="COMMITTED", result=b"R"
        ),
        line(3, "empty", partitions=4),
        line(3, "other", partition=2),
        line(77, "future"),
    ]
    topics = plan(read_lines(lines))
    assert {name: found.partitions for name, found in topics.items()} == {"t": 3, "empty": 4, "other": 2}
    found = topics["t"]
    assert (found.messages, found.acked) == (2, {("g", 0): 3})
    assert found.retries == {("g", 2, 1): CoreRetry(2, "boom", 99)}
    assert [(key, record.result) for key, record in found.outcomes.items()] == [(("", "g", "c"), b"R")]


def test_old_offsets_are_found_again_whatever_they_were() -> None:
    (topic,) = plan(read_lines([line(1, value=b"a")])).values()
    for new, (partition, old) in enumerate([(0, 0), (1, 0), (0, 1), (0, 5)]):
        (found,) = read_lines([line(1, partition=partition, offset=old, value=b"v")])
        topic.stored(found.record, new)
    assert [topic.floor(0, old) for old in (0, 1, 4, 5, 9)] == [0, 2, 2, 3, 3]
    assert [topic.exactly(0, old) for old in (0, 1, 4, 5)] == [0, 2, None, 3]
    assert (topic.floor(1, 0), topic.floor(2, 9), topic.exactly(2, 0)) == (1, -1, None)


def test_a_last_line_that_broke_off_is_left_out() -> None:
    whole = line(1, value=b"v")
    assert [found.end for found in read_lines([whole, b"\n", whole[:-9]])] == [len(whole)]


@pytest.mark.parametrize(
    "raw",
    [
        b"not json\n",
        b"[1]\n",
        b'{"type":1,"topic":"t","offset":"1"}\n',
        b'{"type":1,"topic":"t","value":"!"}\n',
        b'{"type":1}\n',
        b'{"type":2,"topic":"t","offset":-1}\n',
    ],
)
def test_a_line_that_makes_no_sense_is_an_error_with_its_number(raw: bytes) -> None:
    with pytest.raises(CoreLogError, match="line 2"):
        list(read_lines([line(1, value=b"v"), raw, line(1, value=b"v")]))


def test_what_is_no_text_is_an_error() -> None:
    with pytest.raises(CoreLogError, match="UTF-8"):
        plan(read_lines([line(1, value=b"\xff")]))


@pytest.mark.parametrize(
    ("time", "ms"),
    [("1970-01-01T00:00:01.5Z", 1500), ("1970-01-01T01:00:01+01:00", 1000), (7, 7), (None, 0), ("soon", 0)],
)
def test_times_are_texts_or_numbers(time: Any, ms: int) -> None:
    assert moment(time) == ms
