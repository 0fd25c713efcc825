"""Bodies of writes: values, and lines that are spliced without being decoded one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.json import decode, encode

from driftq.client.transport.new_records import NewRecord, line_groups, lines_body, write_body


def test_records_are_values_or_mappings() -> None:
    body = decode(write_body([NewRecord(1, tag="t"), {"data": None, "meta": {"k": "v"}}], node="n", create=None))
    assert body == {"records": [{"data": 1, "tag": "t"}, {"data": None, "meta": {"k": "v"}}], "node": "n"}


def test_every_line_is_one_record() -> None:
    body = decode(lines_body(b'{"a": 1}\n2\n"x"\n', tag="t", idempotency_key="k"))
    records = [{"data": data, "tag": "t"} for data in ({"a": 1}, 2, "x")]
    assert body == {"records": records, "idempotency_key": "k"}


def test_blank_lines_and_carriage_returns_are_passed_over() -> None:
    assert decode(lines_body(b"1\r\n\r\n 2 \n\n3")) == {"records": [{"data": 1}, {"data": 2}, {"data": 3}]}


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        (b"1\n{nope\n", 2),
        (b'1,"tag":"smuggled"\n', 1),
        (b'1},{"data":2\n', 1),
        (b"1,2\n", 1),
        (b"[1\n2]\n3,4\n", 1),
        (b"NaN\n", 1),
    ],
)
def test_a_line_that_is_no_json_is_named_and_nothing_is_smuggled_in(lines: bytes, number: int) -> None:
    with pytest.raises(ValueError, match=f"line {number} is not JSON"):
        lines_body(lines)


def test_no_lines_are_no_write() -> None:
    with pytest.raises(ValueError, match="there are no lines"):
        lines_body(b"\n  \n")


@given(
    st.lists(st.recursive(st.none() | st.integers(-9, 9) | st.text(), st.lists, max_leaves=5), min_size=1, max_size=20),
    st.integers(1, 7),
    st.integers(1, 30),
)
def test_lines_are_the_same_in_whatever_pieces_they_come(values: list[object], lines_max: int, step: int) -> None:
    text = b"".join(encode(value) + b"\n" for value in values)
    chunks = [text[begin : begin + step] for begin in range(0, len(text), step)]
    groups = list(line_groups(chunks, lines_max))
    assert b"".join(groups) == text
    assert all(group.count(b"\n") <= lines_max for group in groups)
    got = [record["data"] for group in groups for record in decode(lines_body(group))["records"]]
    assert got == values
