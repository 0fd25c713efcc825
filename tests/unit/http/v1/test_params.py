"""What a request says: body or query, strict JSON, numbers, white space (http-v1 §1.1)."""

import pytest
from msgspec import Struct
from msgspec.json import Decoder

from driftq.errors import InvalidRequestError
from driftq.http.request import Request
from driftq.http.v1.params import I32, I64, decode, query_of, stripped, whole_number
from tests.unit.http.v1.brokered import BrokerRig


class Shape(Struct, frozen=True, forbid_unknown_fields=True):
    text: str | None = None
    small: I32 | None = None
    large: I64 | None = None
    inner: "Shape | None" = None


DECODER = Decoder(Shape)


@pytest.mark.parametrize(
    "body",
    [
        b'{"unknown":1}',
        b'{"inner":{"unknown":1}}',
        b'{"Text":"a"}',
        b'{"small":1.0}',
        b'{"small":1e0}',
        b'{"small":true}',
        b'{"small":"1"}',
        b'{"small":2147483648}',
        b'{"large":9223372036854775808}',
        b'{"small":NaN}',
        b'{"text":"\xff"}',
        b'{"text":"\xed\xa0\x80"}',
        b'{"text":5}',
        b"{} junk",
        b"{}{}",
        b"[]",
        b"null",
        b" ",
        b"name=x",
        b'{"inner":' * 100_000,
    ],
)
def test_what_is_not_one_object_of_known_fields_is_refused(body: bytes) -> None:
    """inv1: 7, 11"""
    with pytest.raises(InvalidRequestError, match=r"^invalid json body: "):
        decode(DECODER, body)


def test_null_is_absent_and_the_last_of_repeated_keys_counts() -> None:
    assert decode(DECODER, b'{"text":null,"small":null}') == Shape()
    assert decode(DECODER, b'\n {"text":"a","text":"b"} \r\n\t') == Shape("b")
    assert decode(DECODER, b'{"large":9223372036854775807,"small":-2147483648}') == Shape(
        large=2**63 - 1, small=-(2**31)
    )


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (rb"a\ud800b", "a\ufffdb"),
        (rb"\udfff", "\ufffd"),
        (rb"\ud83d\ude00", "\U0001f600"),
        (rb"\uD83D\uDE00", "\U0001f600"),
        (rb"\ud800\ud83d\ude00", "\ufffd\U0001f600"),
        (rb"\\ud800", r"\ud800"),
        (rb"\\\ud800", "\\\ufffd"),
    ],
)
def test_half_a_surrogate_pair_is_a_replacement_character(sent: bytes, kept: str) -> None:
    assert decode(DECODER, b'{"text":"%b"}' % sent).text == kept


def test_a_query_is_decoded_and_the_first_of_a_name_counts() -> None:
    request = Request.of(b"POST", "/v1/x?a=1+2%20%2B&a=no&b=%C3%A9&c=é&d=%FF&e=".encode(), [], b"")
    assert dict(query_of(request)) == {"a": "1 2 +", "b": "é", "c": "é", "d": "\ufffd", "e": ""}


@pytest.mark.parametrize(("text", "value"), [("5", 5), ("+5", 5), ("-5", -5), ("007", 7), ("", None)])
def test_numbers_of_a_query(text: str, value: int | None) -> None:
    assert whole_number({"n": text}, "n", -10, 10) == value


@pytest.mark.parametrize("text", ["x", "1.0", "1e2", "11", "-11", "٣", " 1", "9" * 5000, "0x1", "--1"])
def test_what_is_no_number_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^invalid n$"):
        whole_number({"n": text}, "n", -10, 10)


def test_names_lose_white_space_and_nothing_else() -> None:
    assert stripped(" \t\n\x85\u3000a b\u2029") == "a b"
    assert stripped("\x1fa\x1c") == "\x1fa\x1c"
    assert stripped(None) == ""


def test_a_body_hides_the_query() -> None:
    """inv1: 9"""
    rig = BrokerRig()
    assert rig.message(rig.post("/v1/topics?name=a", {"partitions": 2})) == "name is required"
    assert rig.reply("POST", "/v1/topics?name=a&partitions=2&whatever=1").status == 201
    assert rig.broker.created == [("a", 2)]


def test_a_body_too_large_is_413_and_a_content_type_is_never_looked_at() -> None:
    rig = BrokerRig(limits={"body_bytes_max": 30})
    assert rig.reply("POST", "/v1/topics", raw=b'{"name":"%b"}' % (b"x" * 30)).status == 413
    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert rig.reply("POST", "/v1/topics", raw=b'{"name":"a"}', headers=headers).status == 201
