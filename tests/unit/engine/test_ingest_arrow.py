"""Writes as Arrow streams: the same records as from JSON, and every refusal names its column or row."""

from typing import Any

import pyarrow as pa
import pytest

from driftq.engine.ingest import decode_write
from driftq.engine.ingest_arrow import decode_arrow
from driftq.errors import BatchTooLargeError, InvalidRequestError, RecordTooLargeError
from driftq.model.limits import Limits
from driftq.storage.rows import Rows

_LIMITS = Limits(record_bytes_max=1000)


def _body(table: Any, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=3)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _decode(columns: dict[str, Any], **options: Any) -> Rows:
    return decode_arrow(_body(pa.table(columns)), _LIMITS, 100, **options)


def _facts(rows: Rows) -> list[tuple[bytes | None, ...]]:
    def values(column: Any) -> list[bytes | None]:
        if column is None:
            return [None] * rows.count
        texts = [column.data[a:b] for a, b in zip(column.offsets, column.offsets[1:], strict=False)]
        return [text if here else None for text, here in zip(texts, column.present(), strict=True)]

    return list(zip(*(values(column) for column in (rows.data, rows.tag, rows.node, rows.meta)), strict=True))


@pytest.mark.parametrize("kind", [pa.utf8(), pa.large_utf8()])
def test_the_rows_are_those_of_the_same_records_in_json(kind: Any) -> None:
    texts = ["1", ' {"a" : [1, 2]} ', '"\\u00e9\\/"', "null", '"ü"', "1e999", "[[]]"]
    tags = ["t", None, "", "é", None, "u", "v"]
    metas = [None, '{"k":"v","k":"w"}', None, "{}", None, None, ' {"a": "b"}']
    rows = _decode(
        {"data": pa.array(texts, kind), "tag": pa.array(tags, kind), "meta": pa.array(metas, kind)}, node="n"
    )
    records = []
    for text, tag, meta in zip(texts, tags, metas, strict=True):
        fields = [f'"data":{text}']
        fields += [] if tag is None else [f'"tag":"{tag}"']
        fields += [] if meta is None else [f'"meta":{meta}']
        records.append("{{{}}}".format(",".join(fields)))
    wanted = decode_write(('{{"node":"n","records":[{}]}}'.format(",".join(records))).encode(), _LIMITS).columns
    assert _facts(rows) == _facts(wanted)
    assert (rows.batch_node, rows.payload_bytes) == (b"n", wanted.payload_bytes)


def test_a_node_of_the_query_is_for_rows_that_have_none() -> None:
    rows = _decode({"data": ["1", "2"], "node": ["own", None]}, node="n")
    assert ([fact[2] for fact in _facts(rows)], rows.batch_node) == ([b"own", b"n"], None)


def test_a_column_without_values_is_none() -> None:
    rows = _decode({"data": ["1"], "tag": pa.nulls(1), "node": pa.nulls(1, pa.utf8())})
    assert (rows.tag, rows.node, rows.meta, rows.batch_node) == (None, None, None, None)


def test_a_slice_of_a_larger_table_is_taken_as_it_is() -> None:
    table = pa.table({"data": [str(n) for n in range(50)], "tag": [None if n % 3 else "t" for n in range(50)]})
    rows = decode_arrow(_body(table.slice(7, 20)), _LIMITS, 100)
    assert [fact[:2] for fact in _facts(rows)] == [(b"%d" % n, None if n % 3 else b"t") for n in range(7, 27)]


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"data": ["1"], "seq": [1]}, "'seq'"),
        ({"data": [1]}, "'data'"),
        ({"tag": ["t"]}, "'data'"),
        ({"data": ["1", None]}, "row 1"),
        ({"data": ["1", "nope"]}, "row 1"),
        ({"data": ["1,2", "[3", "4]"]}, "row 0"),
        ({"data": ["[1", "2]"]}, "row 0"),
        ({"data": ["1", ""]}, "row 1"),
        ({"data": ["1", '"\\ud800"']}, "row 1"),
        ({"data": ["1"], "tag": ["x" * 257]}, "tag of row 0"),
        ({"data": ["1"], "node": ["x" * 129]}, "node of row 0"),
        ({"data": ["1", "2"], "meta": [None, '{"k":1}']}, "meta of row 1"),
        ({"data": ["1"], "meta": ["[]"]}, "meta of row 0"),
        ({"data": ["[" * 200 + "]" * 200]}, "128"),
        ({"data": pa.array(["1"]).dictionary_encode()}, "'data'"),
        ({"data": []}, "no records"),
    ],
)
def test_what_is_wrong_is_named(columns: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        _decode(columns)


def test_limits_hold() -> None:
    with pytest.raises(RecordTooLargeError):
        _decode({"data": ['"%s"' % ("x" * 1000)]})
    with pytest.raises(BatchTooLargeError):
        _decode({"data": ["1"] * 101})


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_buffers_are_refused_before_they_are_unpacked(codec: str) -> None:
    table = pa.table({"data": ['"%s"' % ("x" * 900)] * 50})
    body = _body(table, options=pa.ipc.IpcWriteOptions(compression=codec))
    with pytest.raises(InvalidRequestError, match="compression"):
        decode_arrow(body, _LIMITS, 100)


def test_bytes_that_are_no_text_are_refused() -> None:
    bad = pa.array([b"\xff\xfe"], pa.binary()).view(pa.utf8())
    with pytest.raises(InvalidRequestError):
        _decode({"data": bad})


def test_any_cut_and_any_flipped_byte_is_an_error_or_a_write() -> None:
    body = _body(pa.table({"data": ["1", "[2]", "3"], "tag": ["a", None, "c"]}))
    for place in range(0, len(body), 3):
        for broken in (body[:place], body[:place] + bytes([body[place] ^ 0x81]) + body[place + 1 :]):
            try:
                rows = decode_arrow(broken, _LIMITS, 100)
            except InvalidRequestError:
                continue
            assert 1 <= rows.count <= 100
