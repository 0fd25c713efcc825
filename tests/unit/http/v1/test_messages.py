"""Topics and produces on a whole server: what is stored, where, and under which number."""

from typing import Any

import pytest

from tests.unit.http.v1.client import Client, message


@pytest.fixture
def client() -> Client:
    client = Client()
    client.create()
    return client


def test_a_topic_has_the_partitions_it_was_created_with(client: Client) -> None:
    """inv1: 13, 14, 15"""
    assert client.ask("POST", "/v1/topics", {"name": "b"}).body["partitions"] == 1
    assert client.create("a", 0) == 1
    assert message(client.ask("POST", "/v1/topics", {"name": "c", "partitions": -1})) == (400, "invalid partitions")
    assert client.create("é", 3) == 3
    assert client.create("é", 5) == 3
    assert client.ok("GET", "/v1/topics") == {"topics": ["a", "b", "t", "é"]}


def test_a_produce_makes_no_topic(client: Client) -> None:
    """inv1: 16"""
    assert message(client.offer(topic="unknown")) == (400, "topic does not exist (create it first)")
    assert client.topics() == ["t"]


@pytest.mark.parametrize("body", [{"value": ""}, {"value": None}, {}])
def test_a_value_is_required_and_may_be_a_space(client: Client, body: dict[str, Any]) -> None:
    """inv1: 17"""
    assert message(client.ask("POST", "/v1/produce", {"topic": "t"} | body)) == (400, "topic and value are required")
    client.produce(" ")
    assert [item["value"] for item in client.all()] == [" "]


def test_a_target_is_where_a_message_goes_and_the_answer_names_what_was_asked_for(client: Client) -> None:
    """inv1: 18"""
    client.create("other")
    client.produce("v", target_topic="other")
    assert client.all("t") == []
    assert [item["value"] for item in client.all("other")] == ["v"]


def test_offsets_count_what_is_stored_and_nothing_else() -> None:
    """inv1: 19, 20"""
    client = Client(partition_msgs_max=2)
    client.create("t", 3)
    client.produce("0", partition_override=2)
    assert client.offer(partition_override=3).status == 400
    client.produce("1", partition_override=0, idempotency_key="k")
    client.produce("1", partition_override=0, idempotency_key="k")
    client.produce("2", partition_override=0)
    assert client.offer(partition_override=0).status == 429
    client.produce("3", partition_override=1)
    stored = {item["offset"]: (item["value"], item["partition"]) for item in client.all()}
    assert stored == {0: ("0", 2), 1: ("1", 0), 2: ("2", 0), 3: ("3", 1)}


def test_keys_have_their_partitions(client: Client) -> None:
    """inv1: 21"""
    client.create("p", 3)
    for key in ("user:1", "user:2", "a", "b", "c", ""):
        client.produce("v", topic="p", key=key)
    found = {item["key"]: item["partition"] for item in client.all("p")}
    assert found == {"user:1": 1, "user:2": 0, "a": 1, "b": 1, "c": 2, "": 0}


def test_an_override_is_taken_and_shown_and_must_be_a_partition(client: Client) -> None:
    """inv1: 22"""
    client.create("p", 3)
    client.produce("v", topic="p", key="a", partition_override=0)
    (found,) = client.all("p")
    assert (found["partition"], found["envelope"]) == (0, {"partition_override": 0})
    assert message(client.offer(topic="p", partition_override=3)) == (400, "partition_override out of range")
    assert len(client.all("p")) == 1


def test_a_deadline_has_a_zone_and_lies_ahead_and_is_kept_as_it_was_sent(client: Client) -> None:
    """inv1: 23, 24"""
    late, vague = "2020-01-01T00:00:00Z", "2099-01-01T00:00:00"
    assert message(client.offer(deadline=late)) == (400, "message deadline exceeded")
    assert message(client.offer(deadline=vague)) == (400, "invalid deadline")
    for text, why in ((late, "message deadline exceeded"), (vague, "invalid deadline")):
        assert message(client.ask("POST", f"/v1/produce?topic=t&value=v&deadline={text}")) == (400, why)
    assert client.all() == []
    texts = ["2099-01-01T00:00:00.50+00:00", "2099-01-01T00:00:00Z", "2099-01-01T02:30:00.123456789+02:30"]
    for text in texts:
        client.produce("v", deadline=text)
    assert [item["envelope"]["deadline"] for item in client.all()] == texts


@pytest.mark.parametrize("envelope", [{"labels": {"a": "b"}}, {"dlq": {"group": "g"}}])
def test_labels_and_notes_of_dead_letters_are_not_a_producers(client: Client, envelope: Any) -> None:
    """inv1: 25"""
    assert client.offer(**envelope).status == 400
    assert client.all() == []


def test_of_two_names_of_a_parameter_the_first_wins(client: Client) -> None:
    """inv1: 26"""
    for query in ("tenant=x&idem_key=i1", "tenant_id=x&idempotency_key=i2"):
        assert client.ask("POST", f"/v1/produce?topic=t&value=v&{query}").status == 200
    both = "tenant=no&tenant_id=x&idem_key=no&idempotency_key=i3"
    assert client.ask("POST", f"/v1/produce?topic=t&value=v&{both}").status == 200
    assert [item["envelope"] for item in client.all()] == [
        {"tenant_id": "x", "idempotency_key": key} for key in ("i1", "i2", "i3")
    ]
