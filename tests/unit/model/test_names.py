"""Which names a topic may have."""

import pytest

from driftq.errors import InvalidRequestError
from driftq.model.names import (
    broker_name,
    broker_topic,
    check_stored_name,
    is_broker_topic,
    is_stored_name,
    is_topic_name,
)


@pytest.mark.parametrize("name", ["a", "0", "A.b_c:d-e", "a" * 255, "9..", "v1:orders"])
def test_names(name: str) -> None:
    assert is_topic_name(name)
    assert not is_broker_topic(name)
    check_stored_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".a",
        "_a",
        "-a",
        ":a",
        "a b",
        "a/b",
        "a>b",
        "ä",
        "a\n",
        "a" * 256,
        "٣",
        "../../etc/passwd",
        "@",
        "@a b",
        "@a%2",
        "@a%2f",
        "@ä",
    ],
)
def test_no_names(name: str) -> None:
    assert not is_topic_name(name)
    with pytest.raises(InvalidRequestError) as refused:
        check_stored_name(name)
    assert refused.value.detail == {"topic": name}


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("runs", "@runs"),
        ("A.b_c:d-e", "@A.b_c:d-e"),
        (".hidden", "@.hidden"),
        ("a b", "@a%20b"),
        ("a%20b", "@a%2520b"),
        ("@runs", "@%40runs"),
        ("ü/~*+", "@%C3%BC%2F%7E%2A%2B"),
        ("ü" * 127, "@" + "%C3%BC" * 127),
    ],
)
def test_every_broker_name_has_one_stored_name_that_no_v0_topic_can_have(name: str, stored: str) -> None:
    assert broker_topic(name) == stored
    assert broker_name(stored) == name
    assert is_broker_topic(stored)
    assert is_stored_name(stored)
    assert not is_topic_name(stored)
