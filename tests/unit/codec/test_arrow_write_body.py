"""Writes as Arrow streams: the same records as from JSON, and every refusal names its column or row."""

import struct
from typing import Any

import pyarrow as pa
import pytest

from driftq.codec.arrow_write_body import decode_arrow
from driftq.codec.write_body import decode_write
from driftq.errors import BatchTooLargeError, InvalidRequestError, RecordTooLargeError
from driftq.model.limits import Limits
from driftq.storage.blocks.rows import Rows

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


_PLAIN = pa.table({"data": ["1", "2"], "tag": ["a", None]})


def _messages(table: Any) -> tuple[bytes, bytes]:
    """The schema and the one record batch of a table, as messages of a stream."""
    batch = table.combine_chunks().to_batches()[0]
    return batch.schema.serialize().to_pybytes(), batch.serialize().to_pybytes()


def test_a_record_batch_without_a_schema_is_refused() -> None:
    body = bytearray(pa.record_batch({"data": [1]}).serialize().to_pybytes())
    body[131] = 255
    with pytest.raises(InvalidRequestError, match="its first message is a record batch; it must be a schema"):
        decode_arrow(bytes(body), _LIMITS, 100)


def test_only_record_batches_follow_the_schema() -> None:
    schema, batch = _messages(_PLAIN)
    assert decode_arrow(schema + batch + batch, _LIMITS, 100).count == 4
    with pytest.raises(InvalidRequestError, match="plain buffers"):
        decode_arrow(schema + batch + schema, _LIMITS, 100)


def test_bytes_after_the_end_of_the_stream_are_refused_and_not_dropped() -> None:
    body = _body(_PLAIN)
    with pytest.raises(InvalidRequestError, match=f"{len(body)} bytes follow its end"):
        decode_arrow(body + body, _LIMITS, 100)


def test_an_arrow_file_is_refused_by_its_name() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, _PLAIN.schema) as writer:
        writer.write_table(_PLAIN)
    with pytest.raises(InvalidRequestError, match="it is an Arrow file"):
        decode_arrow(sink.getvalue().to_pybytes(), _LIMITS, 100)


def test_a_big_endian_stream_is_refused() -> None:
    schema, batch = _messages(_PLAIN.select(["data"]))
    # A little-endian schema leaves the field out: the first slot of its vtable, after the sizes 8 and 8, is 0.
    place = schema.index(struct.pack("<4H", 8, 8, 0, 4)) + 4
    with pytest.raises(InvalidRequestError, match="big-endian"):
        decode_arrow(schema[:place] + b"\x04" + schema[place + 1 :] + batch, _LIMITS, 100)


def test_streams_of_the_older_framing_are_read() -> None:
    body = _body(_PLAIN, options=pa.ipc.IpcWriteOptions(use_legacy_format=True))
    assert decode_arrow(body, _LIMITS, 100).count == 2


def test_buffers_at_odd_addresses_are_read() -> None:
    """The first message is longer by one byte, so everything after it is at an odd address."""
    schema, batch = _messages(_PLAIN)
    size = int.from_bytes(schema[4:8], "little")
    odd = schema[:4] + (size + 1).to_bytes(4, "little") + schema[8 : 8 + size] + b"\x00" + schema[8 + size :]
    assert _facts(decode_arrow(odd + batch, _LIMITS, 100)) == _facts(decode_arrow(schema + batch, _LIMITS, 100))


def test_a_column_of_json_with_arrows_own_type_for_it_is_its_text() -> None:
    rows = _decode({"data": pa.array(['{"a":1}'], pa.json_(pa.utf8()))})
    assert _facts(rows)[0][0] == b'{"a":1}'


def test_record_batches_are_limited_whatever_is_in_them() -> None:
    schema, batch = _messages(pa.table({"data": ["1"]}))
    assert decode_arrow(schema + batch * 10_000, _LIMITS, 20_000).count == 10_000
    with pytest.raises(InvalidRequestError, match="more than 10000 record batches"):
        decode_arrow(schema + batch * 10_001, _LIMITS, 20_000)
