"""Columns of texts: Arrow's layout, absent values, and what needs escaping."""

import json
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftq.storage.blocks.rows import Row, Rows, Texts, bitmap, is_plain, offsets_of, partition_column, sized_offsets
from tests.unit.storage import samples

optional_texts = st.lists(st.none() | samples.texts, max_size=40)


@given(optional_texts)
def test_a_column_gives_back_its_values(values: list[bytes | None]) -> None:
    column = Texts.of(values)
    assert column.count == len(values)
    assert [column[row] for row in range(column.count)] == values
    assert column.present() == bytes(value is not None for value in values)


@given(optional_texts)
def test_a_column_is_laid_out_as_arrow_does(values: list[bytes | None]) -> None:
    column = Texts.of(values)
    assert column.offsets[0] == 0
    assert column.offsets[-1] == len(column.data)
    assert sorted(column.offsets) == list(column.offsets)
    assert (column.valid is None) == (None not in values)
    if column.valid is not None:
        assert len(column.valid) == (len(values) + 7) // 8


def test_an_empty_text_is_not_an_absent_one() -> None:
    column = Texts.of([b"", None, b"x"])
    assert [column[0], column[1], column[2]] == [b"", None, b"x"]
    assert column.valid == b"\x05"


@given(st.lists(st.booleans(), max_size=100))
def test_a_bitmap_spreads_to_what_it_was_made_of(present: list[bool]) -> None:
    assert partition_column(bitmap(present), len(present)) == bytes(present)


@given(st.text(max_size=8))
def test_plain_means_that_json_writes_the_text_as_it_is(text: str) -> None:
    written = json.dumps(text, ensure_ascii=False)
    assert is_plain(text.encode(errors="surrogatepass")) == (written == f'"{text}"')


@pytest.mark.parametrize("code", range(256))
def test_only_controls_quote_and_backslash_are_not_plain(code: int) -> None:
    assert Texts(b"ab" + bytes([code]), array("i", (0, 3))).plain() == (code >= 32 and code not in b'"\\')


def test_offsets_begin_at_nothing_and_end_at_everything() -> None:
    assert offsets_of([]).tolist() == [0]
    assert offsets_of([3, 0, 2]).tolist() == [0, 3, 3, 5]


@given(st.lists(optional_texts.filter(len), min_size=1, max_size=5))
def test_joined_columns_are_the_columns_one_behind_the_other(columns: list[list[bytes | None]]) -> None:
    joined = Texts.joined([Texts.of(values) for values in columns])
    assert [joined[row] for row in range(joined.count)] == [value for values in columns for value in values]


@given(st.lists(samples.rows(rows_max=9), min_size=1, max_size=5))
def test_joined_writes_are_the_writes_one_behind_the_other(writes: list[Rows]) -> None:
    joined = Rows.joined(writes)
    expected = [record for write in writes for record in samples.records_of(write, first_seq=0, ts=1)]
    found = samples.records_of(joined, first_seq=0, ts=1)
    assert [record._replace(seq=0) for record in found] == [record._replace(seq=0) for record in expected]
    assert joined.payload_bytes == sum(write.payload_bytes for write in writes)


@st.composite
def singles(draw: st.DrawFn) -> Row:
    data, tag = draw(st.binary(max_size=5)), draw(st.none() | st.binary(max_size=3))
    return Row(data, tag, len(data))


@given(st.lists(singles() | samples.rows(rows_max=4), min_size=1, max_size=8))
def test_single_records_join_with_each_other_and_with_columns(writes: list[Row | Rows]) -> None:
    apart = [write.rows() if isinstance(write, Row) else write for write in writes]
    expected = [record for write in apart for record in samples.records_of(write, first_seq=0, ts=1)]
    joined = Rows.joined(writes)
    found = samples.records_of(joined, first_seq=0, ts=1)
    assert [record._replace(seq=0) for record in found] == [record._replace(seq=0) for record in expected]
    assert (joined.count, joined.payload_bytes) == (
        sum(write.count for write in writes),
        sum(write.payload_bytes for write in writes),
    )


@given(st.lists(singles(), min_size=1, max_size=8))
def test_single_records_are_columns_of_their_values(written: list[Row]) -> None:
    rows = Rows.of(written)
    assert [rows.data[row] for row in range(rows.count)] == [single.data for single in written]
    tags = [None] * rows.count if rows.tag is None else [rows.tag[row] for row in range(rows.count)]
    assert tags == [single.tag for single in written]


@given(samples.rows())
def test_payload_bytes_are_data_and_meta(written: Rows) -> None:
    found = samples.records_of(written, first_seq=1, ts=1)
    assert written.payload_bytes == sum(len(record.data) + len(record.meta or b"") for record in found)


@pytest.mark.parametrize("rows", [1, 2, 3, 1024, 1025])
@pytest.mark.parametrize("size", [0, 7, 300])
def test_values_of_one_length_have_the_offsets_of_any(rows: int, size: int) -> None:
    sizes = [size] * rows
    assert sized_offsets(sizes) == offsets_of(sizes)
    for odd in {0, rows // 2, rows // 3, rows - 1}:
        other = [*sizes[:odd], size + 1, *sizes[odd + 1 :]]
        assert sized_offsets(other) == offsets_of(other)


def test_joined_columns_are_one_text_for_who_asks() -> None:
    column = Texts.joined([Texts.sized(b"abc", [1, 2]), Texts.sized(b"", [0]), Texts.sized(b"de", [2])])
    assert [column[row] for row in range(column.count)] == [b"a", b"bc", b"", b"de"]
    assert (column.data, column.pieces) == (b"abcde", [b"abcde"])
