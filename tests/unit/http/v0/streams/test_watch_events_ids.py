"""Ids of events."""

import pytest

from driftq.http.v0.streams.watch_events import decode_id, encode_id


def test_an_id_is_unpadded_base64url_of_compact_json() -> None:
    """inv: 55"""
    assert encode_id({"a": 1, "b": 20}) == b"eyJhIjoxLCJiIjoyMH0"
    assert decode_id(b"eyJhIjoxLCJiIjoyMH0") == {"a": 1, "b": 20}


def test_padding_and_space_around_an_id_do_no_harm() -> None:
    assert decode_id(b" eyJhIjoxfQ== ") == {"a": 1}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"!!!",
        b"garbage",
        b"bnVsbA",
        b"WzFd",
        b"MTI",
        b"eyJhIjotMX0",
        b"eyJhIjoxLjB9",
        b"eyJhIjp0cnVlfQ",
        b"\xff\xfe",
        b"/w",
    ],
)
def test_what_is_no_id_is_none(text: bytes) -> None:
    """inv: 56"""
    assert decode_id(text) is None
