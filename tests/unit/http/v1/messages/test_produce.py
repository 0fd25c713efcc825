"""`POST /v1/produce`: both forms, what is refused, what reaches the broker (http-v1 §3.5)."""

from typing import Any

import pytest

from driftq.errors import InvalidRequestError
from driftq.http.v1.messages.produce import deadline_ms, deadline_text
from driftq.model.broker_settings import BrokerSettings
from driftq.model.message import Envelope, Message, RetryPolicy
from tests.unit.http.v1.brokered import BrokerRig

FULL = Envelope(
    run_id="r",
    step_id="s",
    parent_step_id="p",
    tenant_id="ta",
    idempotency_key="ik",
    target_topic="other",
    partition_override=0,
    deadline="2099-12-21T12:00:00Z",
    retry_policy=RetryPolicy(5, 250, 5000),
)
FULL_JSON = {
    "run_id": " r ",
    "step_id": "s\n",
    "parent_step_id": "p",
    "tenant_id": "ta",
    "idempotency_key": "\tik",
    "target_topic": " other",
    "partition_override": 0,
    "deadline": "2099-12-21T12:00:00Z",
    "retry_policy": {"max_attempts": 5, "backoff_ms": 250, "max_backoff_ms": 5000},
}
FULL_QUERY = (
    "run_id=r&step_id=s&parent_step_id=p&tenant=ta&tenant_id=+&idem_key=ik&target_topic=other&partition_override=0"
    "&deadline_rfc3339=2099-12-21T12:00:00Z&retry_max_attempts=5&retry_backoff_ms=250&retry_max_backoff_ms=5000"
)


def test_both_forms_mean_the_same() -> None:
    """inv1: 26"""
    rig = BrokerRig()
    reply = rig.post("/v1/produce", {"topic": " t ", "key": " k", "value": " v ", "envelope": FULL_JSON})
    assert (reply.status, reply.body) == (200, b'{"status":"produced","topic":"t"}\n')
    assert rig.reply("POST", f"/v1/produce?topic=t&key=+k&value=+v+&{FULL_QUERY}").status == 200
    assert rig.broker.produced == [("t", Message(" v ", " k", FULL), deadline_ms("2099-12-21T12:00:00Z"))] * 2


@pytest.mark.parametrize(
    "envelope",
    [{}, {"run_id": "", "step_id": "  ", "tenant_id": None}, {"retry_policy": {}}, {"deadline": " "}, None],
)
def test_an_envelope_with_nothing_set_is_none(envelope: Any) -> None:
    rig = BrokerRig()
    assert rig.post("/v1/produce", {"topic": "t", "value": "v", "envelope": envelope}).status == 200
    assert rig.reply("POST", "/v1/produce?topic=t&value=v&retry_max_attempts=0").status == 200
    assert [message for _, message, _ in rig.broker.produced] == [Message("v")] * 2


@pytest.mark.parametrize(
    ("envelope", "message"),
    [
        ({"labels": {"a": "b"}}, "invalid json body: "),
        ({"dlq": {}}, "invalid json body: "),
        ({"retry_policy": {"jitter_ms": 1}}, "invalid json body: "),
        ({"retry_policy": {"max_attempts": -1}}, "invalid retry_max_attempts"),
        ({"retry_policy": {"backoff_ms": -1}}, "invalid retry_backoff_ms"),
        ({"retry_policy": {"max_backoff_ms": -1}}, "invalid retry_max_backoff_ms"),
        ({"deadline": "2099-01-01T00:00:00"}, "invalid deadline"),
        ({"deadline": 5}, "invalid json body: "),
    ],
)
def test_what_an_envelope_may_not_hold(envelope: Any, message: str) -> None:
    """inv1: 25"""
    rig = BrokerRig()
    assert rig.message(rig.post("/v1/produce", {"topic": "t", "value": "v", "envelope": envelope})).startswith(message)
    assert rig.broker.produced == []


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("topic=t", "topic and value are required"),
        ("topic=+&value=v", "topic and value are required"),
        ("topic=t&value=v&partition_override=-1", "invalid partition_override"),
        ("topic=t&value=v&partition_override=x", "invalid partition_override"),
        ("topic=t&value=v&retry_max_attempts=-1", "invalid retry_max_attempts"),
        ("topic=t&value=v&retry_max_attempts=1&retry_backoff_ms=1.5", "invalid retry_backoff_ms"),
        (
            "topic=t&value=v&retry_backoff_ms=5",
            "retry_max_attempts must be > 0 when using retry backoff params",
        ),
        ("topic=t&value=v&deadline=soon", "invalid deadline"),
        ("topic=t&value=v&deadline_rfc3339=soon", "invalid deadline_rfc3339"),
        ("topic=t&value=v&deadline_ms=soon", "invalid deadline_ms"),
        ("topic=t&value=v&deadline_ms=1e3", "invalid deadline_ms"),
    ],
)
def test_what_a_query_may_not_say(query: str, message: str) -> None:
    """inv1: 17"""
    rig = BrokerRig()
    assert rig.message(rig.reply("POST", f"/v1/produce?{query}")) == message


def test_a_deadline_in_milliseconds_is_kept_as_text() -> None:
    rig = BrokerRig()
    assert rig.reply("POST", "/v1/produce?topic=t&value=v&deadline_ms=4070908800123").status == 200
    envelope = rig.broker.produced[0][1].envelope
    assert envelope is not None
    assert envelope.deadline == "2099-01-01T00:00:00.123+00:00"
    assert deadline_ms(envelope.deadline) == 4070908800123


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.5Z", 500),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T23:30:01-00:30", 1000),
    ],
)
def test_what_a_deadline_means(text: str, ms: int) -> None:
    assert deadline_ms(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "2099-01-01",
        "2099-01-01T00:00Z",
        "2099-01-01 00:00:00Z",
        "2099-01-01T00:00:00.Z",
        "2099-01-01T00:00:00.1234567891Z",
        "2099-01-01T00:00:00+0530",
        "2099-01-01T00:00:00+24:00",
        "2099-02-30T00:00:00Z",
        "2099-01-01T25:00:00Z",
        "2099-01-01T00:00:60Z",
        "20990101T000000Z",
        "2099-01-01T00:00:00z",
    ],
)
def test_what_is_no_deadline(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^invalid deadline$"):
        deadline_ms(text)


def test_a_moment_beyond_all_calendars_is_no_deadline() -> None:
    with pytest.raises(InvalidRequestError):
        deadline_text(2**62)


def test_labels_are_taken_where_the_setting_says_so() -> None:
    rig = BrokerRig(settings=BrokerSettings(accept_labels=True))
    assert rig.post("/v1/produce", {"topic": "t", "value": "v", "envelope": {"labels": {"a": "b"}}}).status == 200
    assert rig.broker.produced[0][1].envelope == Envelope(labels={"a": "b"})
    assert rig.post("/v1/produce", {"topic": "t", "value": "v", "envelope": {"labels": {"a": 1}}}).status == 400


def test_a_key_needs_both_names_of_a_produce() -> None:
    rig = BrokerRig(keys="team:w:@team.")
    body = {"topic": "team.a", "value": "v"}
    assert rig.reply("POST", "/v1/produce", body, key="team").status == 200
    for refused in (body | {"topic": "a"}, body | {"envelope": {"target_topic": "a"}}):
        assert rig.message(rig.reply("POST", "/v1/produce", refused, key="team"), 403)
