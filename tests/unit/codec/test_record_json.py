"""Records as JSON: every combination of fields, whatever stands in tags and nodes, from every kind of source."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json

from driftq.codec.record_json import Fields, render_records
from driftq.engine.read.topic_page import Page, Slice
from driftq.storage.blocks.block import Block, RowSource, encode_block
from driftq.storage.blocks.open_block import OpenBlock
from driftq.storage.blocks.rows import Rows
from tests.unit.storage import samples

texts = st.text(st.sampled_from('ab%"\\/\n\0\x1f\x7fé€😀'), max_size=6).map(str.encode)
datas = st.sampled_from((b"0", b'"%d %b %%"', b"[1,2]", b'{"a":"\\n"}', b"null", '"é😀"'.encode()))
metas = st.sampled_from((b"{}", b'{"k":"%s"}', b'{"a":"\\u0000"}'))


@st.composite
def some_rows(draw: st.DrawFn) -> Rows:
    """A write with any columns."""
    count = draw(st.integers(1, 6))

    def column(values: st.SearchStrategy[bytes]) -> list[bytes | None] | None:
        one = draw(st.sampled_from((None, values, st.none() | values)))
        return None if one is None else draw(st.lists(one, min_size=count, max_size=count))

    batch_node = draw(st.none() | texts)
    return samples.make_rows(
        draw(st.lists(datas, min_size=count, max_size=count)),
        tag=column(texts),
        node=column(texts) if batch_node is None else None,
        meta=column(metas),
        batch_node=batch_node,
    )


def page_of(source: RowSource, rows: list[int] | range) -> Page:
    return Page([Slice(source, rows)], 0, 0, 0, None, 0)


def expected(record: samples.Record, fields: Fields) -> dict[str, object]:
    """What a reader gets of it; absent is omitted, never null."""
    found: dict[str, object] = {"$seq": record.seq, "$ts": record.ts}
    if record.node is not None:
        found["$node"] = record.node.decode()
    if record.tag is not None and fields.tags:
        found["$tag"] = record.tag.decode()
    if record.meta is not None and fields.meta:
        found["meta"] = json.decode(record.meta)
    if fields.data:
        found["data"] = json.decode(record.data)
    return found


@given(st.data())
def test_every_record_is_valid_json_with_the_fields_that_were_asked_for(data: st.DataObject) -> None:
    rows = data.draw(some_rows())
    first = data.draw(st.sampled_from((1, 7, 996, 1000, 1997, 999_996, (1 << 63) - 20)))
    source: RowSource
    if data.draw(st.booleans()):
        source = Block.of(encode_block(rows, topic_id=1, first_seq=first, ts=1000))
    else:
        source = OpenBlock(first)
        source.extend(rows, 1000)
        source.extend(rows, data.draw(st.sampled_from((1000, 1005))))
    picked = data.draw(
        st.one_of(
            st.just(range(source.count)),
            st.lists(st.integers(0, source.count - 1), min_size=1, unique=True).map(sorted),
        )
    )
    fields = Fields(tags=data.draw(st.booleans()), meta=data.draw(st.booleans()), data=data.draw(st.booleans()))
    text = render_records(page_of(source, picked), fields)
    records = samples.records(source)
    assert json.decode(b"[%b]" % text) == [expected(records[row], fields) for row in picked]


@pytest.mark.parametrize(("tags", "meta", "data"), list(itertools.product((True, False), repeat=3)))
def test_fields_that_were_not_asked_for_are_not_there(*, tags: bool, meta: bool, data: bool) -> None:
    rows = samples.make_rows([b"1"], tag=[b"t"], node=[b"n"], meta=[b"{}"])
    block = Block.of(encode_block(rows, topic_id=1, first_seq=1, ts=5))
    (record,) = json.decode(b"[%b]" % render_records(page_of(block, [0]), Fields(tags=tags, meta=meta, data=data)))
    assert set(record) == {"$seq", "$ts", "$node"} | {
        name for name, wanted in (("$tag", tags), ("meta", meta), ("data", data)) if wanted
    }


def test_an_empty_page_is_empty_text() -> None:
    assert render_records(Page([], 0, 0, 1, None, 0), Fields()) == b""


def test_the_bytes_of_data_are_those_that_were_stored() -> None:
    """Numbers keep their spelling: nothing is parsed on the way out."""
    block = Block.of(
        encode_block(samples.make_rows([b"1e5", b"1.0", b"12345678901234567890"]), topic_id=1, first_seq=1, ts=5)
    )
    text = render_records(page_of(block, range(3)), Fields())
    assert text == (
        b'{"$seq":1,"$ts":5,"data":1e5},{"$seq":2,"$ts":5,"data":1.0},{"$seq":3,"$ts":5,"data":12345678901234567890}'
    )


def test_seqs_of_a_long_page_are_written_out_in_full() -> None:
    rows = samples.make_rows([b"0"] * 2500)
    for first in (1, 499, 999_001):
        page = page_of(Block.of(encode_block(rows, topic_id=1, first_seq=first, ts=1000)), range(2500))
        found = json.decode(b"[" + render_records(page, Fields()) + b"]")
        assert [record["$seq"] for record in found] == list(range(first, first + 2500))
