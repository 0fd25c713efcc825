"""Bodies of writes, one by one: what is taken and how it is stored, what is refused and with which error."""

import json
import sys
import tracemalloc

import pytest

from driftq.codec.topic_config_body import decode_config
from driftq.codec.write_body import WriteRequest, decode_write, make_rows
from driftq.errors import BatchTooLargeError, InvalidRequestError, RecordTooLargeError
from driftq.model.limits import U64_MAX, Limits
from driftq.model.topic_config import Discard, Durability, TopicConfig
from driftq.storage.blocks.rows import Rows, Texts

LIMITS = Limits()


def one(data: bytes, more: bytes = b"") -> bytes:
    """The body of a write of one record."""
    return b'{"records":[{"data":' + data + more + b"}]}"


def stored(data: bytes) -> bytes | None:
    return decode_write(one(data), LIMITS).columns.data[0]


def column(texts: Texts | None) -> list[bytes | None] | None:
    return None if texts is None else [texts[row] for row in range(texts.count)]


def refused(body: bytes, limits: Limits = LIMITS) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        decode_write(body, limits)
    assert type(caught.value) is InvalidRequestError
    assert caught.value.code == "invalid_request"
    assert caught.value.message
    return caught.value


# Values


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (b"null", b"null"),
        (b" true ", b"true"),
        (b"\r\n\t false\n", b"false"),
        (b"1e5", b"1e5"),
        (b"1E+05", b"1E+05"),
        (b"1e999", b"1e999"),
        (b"-0", b"-0"),
        (b"-0.0", b"-0.0"),
        (b"0.10", b"0.10"),
        (b"9007199254740993", b"9007199254740993"),
        (b"18446744073709551616", b"18446744073709551616"),
        (b"1" * 5000, b"1" * 5000),
        (b'{ "a" : [1, 2,\n 3] }', b'{"a":[1,2,3]}'),
        (b'{"b":1,"a":2,"b":3}', b'{"b":1,"a":2,"b":3}'),
        (b"[1,\r2]", b"[1,2]"),
        (b"[1,\t2]", b"[1,2]"),
        (b"[ ]", b"[]"),
        (b"{\n}", b"{}"),
        (b'" a  b "', b'" a  b "'),
        (b'"\\u0041\\/"', b'"A/"'),
        (b'"\\u00e9\\ud83d\\ude00"', '"é😀"'.encode()),
        (b'"\\uD83D\\uDE00"', '"😀"'.encode()),
        ('"é😀\u2028\x7f"'.encode(), '"é😀\u2028\x7f"'.encode()),
        (b'"\\u2028\\u007f"', '"\u2028\x7f"'.encode()),
        (b'"\\u0000\\u001f\\u0008\\u0009\\u000A\\u000c\\u000d"', b'"\\u0000\\u001f\\b\\t\\n\\f\\r"'),
        (b'"\\u0022\\u005C\\u002f"', b'"\\"\\\\/"'),
        (b'"\\"\\\\\\b\\f\\n\\r\\t"', b'"\\"\\\\\\b\\f\\n\\r\\t"'),
        (b'"\\\\u0041"', b'"\\\\u0041"'),
        (b'"\\\\\\u0041"', b'"\\\\A"'),
        (b'"\\\\/"', b'"\\\\/"'),
        (b'["\\u0022\\u002c","\\u002c\\u0022","\\u002c"]', b'["\\",",",\\"",","]'),
        (b'["\\/,\\/","\\u0022,\\u0022",","]', b'["/,/","\\",\\"",","]'),
        (b'{"\\u00fc":{"\\/":[]}}', '{"ü":{"/":[]}}'.encode()),
    ],
)
def test_a_value_is_kept_as_compact_text_and_numbers_as_written(sent: bytes, kept: bytes) -> None:
    rows = decode_write(one(sent), LIMITS).columns
    assert column(rows.data) == [kept]
    assert rows.payload_bytes == len(kept)


NOT_JSON = [
    *(b"NaN", b"Infinity", b"-Infinity", b"undefined", b"nul", b"nulll", b"True", b"'a'"),
    *(b"01", b"-01", b"+1", b".5", b"1.", b"1.e5", b"1e", b"1e+", b"-", b"--1", b"0x1", b"1_0", b"1 2"),
    *(b"[1,]", b"[,]", b"[1 2]", b"[", b"]", b"[1}", b'{"a"}', b'{"a":}', b'{"a":1,}', b"{a:1}", b"{1:1}", b","),
    *(b'"', b'"a', b'"\n"', b'"\x00"', b'"\x1f"', b'"\\x"', b'"\\u12"', b'"\\u12g4"', b"\\u0031", b"\\n"),
    *(b'"\\ud800"', b'"\\udc00"', b'"\\udc00\\ud800"', b'"\\ud800x"', b'"\\ud800\\u0041"', b'"\\ud800\\ud800"'),
    *(b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"', b'"\xf5\x80\x80\x80"', b'"\xc3"', b"\xff", b"\xc2\xa01"),
    *(b"//\n1", b"/**/1", b"1\x00", b"\x0b1", b"\xef\xbb\xbf1"),
]


@pytest.mark.parametrize("value", NOT_JSON)
@pytest.mark.parametrize("frame", [b"%b", b" %b\n", b"[%b]", b'{"a":%b}', b'["\\u0041",%b]'])
def test_what_is_not_json_is_refused_wherever_it_stands(value: bytes, frame: bytes) -> None:
    refused(one(frame % value))
    refused(one(b"1", b',"unknown":' + frame % value))
    refused(b'{"records":[{"data":1}],"unknown":' + frame % value + b"}")


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"",
            b" ",
            b"null",
            b"true",
            b"1",
            b'"text"',
            b"[]",
            b"[{}]",
            b"{",
            b"{broken}",
            b"{'a':1}",
            b"{} {}",
            b"\xff",
        ),
        *(b'{"records":[{"data":1}]}x', b'{"records":[{"data":1}]}{}', b'\xef\xbb\xbf{"records":[{"data":1}]}'),
        *('{"records":[{"data":1}]}'.encode("utf-16"), '{"records":[{"data":1}]}'.encode("utf-32-le")),
        *(b"{}", b'{"node":"a"}', b'{"records":[{}]}', b'{"records":[{"tag":"x"}]}', b'{"records":[{"DATA":1}]}'),
        *(b'{"records":%b}' % value for value in (b"null", b"{}", b'"x"', b"1", b"[1]", b'["x"]', b"[[]]", b"[null]")),
        *(one(b"1", b',"tag":' + value) for value in (b"5", b"true", b"[]", b"{}", b'"\\ud800"')),
        *(one(b"1", b',"node":' + value) for value in (b"5", b"[]", b'["a"]')),
        *(one(b"1", b',"meta":' + value) for value in (b"[]", b'"x"', b"1", b"false")),
        *(one(b"1", b',"meta":{"a":%b}' % value) for value in (b"1", b"null", b"[]", b'{"b":"c"}', b"true")),
        one(b"1", b',"tag":5,"tag":"x"'),
    ],
)
def test_a_body_of_the_wrong_shape_is_refused(body: bytes) -> None:
    refused(body)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        (b"node", (b"1", b"[]")),
        (b"idempotency_key", (b"1", b"{}")),
        (b"create", (b"1", b'"true"', b"[]")),
        (b"disable_backpressure", (b"1", b"0", b'"true"', b"null")),
        (b"config", (b"[]", b'"x"', b"1", b"true")),
    ],
)
def test_a_field_of_the_wrong_type_is_refused(field: bytes, values: tuple[bytes, ...]) -> None:
    for value in values:
        refused(b'{"records":[{"data":1}],"' + field + b'":' + value + b"}")


def test_null_means_absent() -> None:
    body = b'{"records":[{"data":null,"tag":null,"node":null,"meta":null}],"node":null,"idempotency_key":null,'
    request = decode_write(body + b'"create":null,"config":null}', LIMITS)
    assert column(request.columns.data) == [b"null"]
    assert (request.columns.tag, request.columns.node, request.columns.meta, request.columns.batch_node) == (None,) * 4
    assert (request.idempotency_key, request.create, request.config, request.disable_backpressure) == (None,) * 3 + (
        False,
    )


def test_every_field_is_read() -> None:
    body = b'{"records":[{"data":1}],"node":"n","idempotency_key":"k","create":false,"config":{"type":"queue"},'
    request = decode_write(body + b'"disable_backpressure":true}', LIMITS)
    assert isinstance(request, WriteRequest)
    assert request.columns.batch_node == b"n"
    assert (request.idempotency_key, request.create, request.disable_backpressure) == ("k", False, True)
    assert request.config == TopicConfig(type="queue")


def test_unknown_fields_are_ignored_at_every_level_and_a_repeated_one_counts_last() -> None:
    record = b'{"y":[null],"data":1,"data":[2],"tag":"a","tag":"b"}'
    body = b'{"x":{"records":1},"records":[],"records":[%b],"config":{"z":1}}' % record
    request = decode_write(body, LIMITS)
    assert column(request.columns.data) == [b"[2]"]
    assert column(request.columns.tag) == [b"b"]
    assert request.config == TopicConfig()


# Columns


def test_columns_know_which_rows_have_a_value() -> None:
    records = [
        {"data": 1, "tag": "t", "meta": {"k": "v"}},
        {"data": 2, "tag": ""},
        {"data": 3},
        {"data": 4, "tag": "tü", "meta": {}},
    ]
    rows = decode_write(json.dumps({"records": records}).encode(), LIMITS).columns
    assert rows.count == 4
    assert column(rows.tag) == [b"t", b"", None, "tü".encode()]
    assert column(rows.meta) == [b'{"k":"v"}', None, None, b"{}"]
    assert rows.node is None
    assert rows.payload_bytes == 4 + len('{"k":"v"}{}')


def test_a_column_of_values_only_has_no_bitmap() -> None:
    for tags in (["a", "", "ccc"], ["ä", "b", "日本"]):
        body = json.dumps({"records": [{"data": 0, "tag": tag} for tag in tags]}).encode()
        found = decode_write(body, LIMITS).columns.tag
        assert found is not None
        assert found.valid is None
        assert column(found) == [tag.encode() for tag in tags]


def test_the_node_of_the_batch_stands_once_unless_a_record_has_its_own() -> None:
    rows = decode_write(b'{"records":[{"data":1},{"data":2}],"node":"\xc3\xa4"}', LIMITS).columns
    assert (rows.node, rows.batch_node) == (None, "ä".encode())
    rows = decode_write(
        b'{"records":[{"data":1},{"data":2,"node":"own"},{"data":3,"node":null}],"node":"all"}', LIMITS
    ).columns
    assert (column(rows.node), rows.batch_node) == ([b"all", b"own", b"all"], None)
    rows = decode_write(b'{"records":[{"data":1},{"data":2,"node":""}]}', LIMITS).columns
    assert (column(rows.node), rows.batch_node) == ([None, b""], None)
    rows = decode_write(b'{"records":[{"data":1}],"node":""}', LIMITS).columns
    assert (rows.node, rows.batch_node) == (None, b"")


def test_meta_is_compact_and_the_last_of_a_repeated_key_stays() -> None:
    rows = decode_write(one(b"1", b',"meta": { "\\u00fc" : "\\/\\n\\u0001" , "a":"1", "a" : "2" }'), LIMITS).columns
    assert column(rows.meta) == ['{"ü":"/\\n\\u0001","a":"2"}'.encode()]


def test_rows_do_not_keep_the_body_alive() -> None:
    body = one(b'{"a":[1,2,3]}', b',"tag":"t","node":"n","meta":{"k":"v"}')
    held = sys.getrefcount(body)
    rows = decode_write(body, LIMITS).columns
    assert sys.getrefcount(body) == held
    assert [type(texts.data) for texts in (rows.data, rows.tag, rows.node, rows.meta) if texts] == [bytes] * 4


def test_make_rows_is_the_same_without_the_body() -> None:
    made = make_rows([b"1", b"[2]"], ["a", None], [None, "n"], [None, b"{}"], "all")
    body = b'{"records":[{"data":1,"tag":"a"},{"data":[2],"node":"n","meta":{}}],"node":"all"}'
    assert picture(made) == picture(decode_write(body, LIMITS).columns)
    assert picture(make_rows([b"1"])) == picture(decode_write(one(b"1"), LIMITS).columns)
    bare = make_rows([b"1", b"2"], [None, None], [None, None], [None, None], "ü")
    assert (bare.tag, bare.node, bare.meta, bare.batch_node) == (None, None, None, "ü".encode())


def picture(rows: Rows) -> tuple[object, ...]:
    return (
        rows.count,
        rows.payload_bytes,
        rows.batch_node,
        *(
            (texts.data, texts.offsets, texts.valid) if texts else None
            for texts in (rows.data, rows.tag, rows.node, rows.meta)
        ),
    )


# Limits


def test_a_batch_is_neither_empty_nor_too_large() -> None:
    refused(b'{"records":[]}')
    refused(b'{"records":[],"idempotency_key":"k"}')
    few = Limits(batch_records_max=3)
    assert decode_write(b'{"records":[%b]}' % b",".join([b'{"data":1}'] * 3), few).columns.count == 3
    for count in (4, 60, 1000):
        with pytest.raises(BatchTooLargeError) as caught:
            decode_write(b'{"records":[%b]}' % b",".join([b'{"data":1}'] * count), few)
        assert caught.value.code == "batch_too_large"
        assert caught.value.detail == {"records": count, "max": 3}


def test_a_flood_of_records_costs_little_more_than_its_body() -> None:
    body = b'{"records":[%b]}' % b",".join([b'{"data":[]}'] * 200_000)
    tracemalloc.start()
    with pytest.raises(BatchTooLargeError) as caught:
        decode_write(body, LIMITS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.detail == {"records": 200_000, "max": 10_000}
    assert peak < 4 * len(body)


def test_many_objects_in_few_records_are_no_flood() -> None:
    limits = Limits(batch_records_max=2)
    rows = decode_write(one(b"[" + b",".join([b"{}"] * 1000) + b"]"), limits).columns
    assert rows.count == 1


def test_a_record_is_data_and_meta_together() -> None:
    limits = Limits(record_bytes_max=20)
    assert stored_bytes(one(b'"' + b"x" * 18 + b'"'), limits) == 20
    assert stored_bytes(one(b'"' + b"x" * 9 + b'"', b',"meta":{"k":"v"}'), limits) == 20
    assert stored_bytes(one(b'"' + b"\\u00e9" * 9 + b'"'), limits) == 20
    assert stored_bytes(one(b"[ 1, \n" + b"2 , " * 7 + b"34]"), limits) == 20
    for data, meta, size in (
        (b'"' + b"x" * 19 + b'"', b"", 21),
        (b'"' + b"x" * 10 + b'"', b',"meta":{"k":"v"}', 21),
        (b'"' + b"\\u00e9" * 10 + b'"', b"", 22),
    ):
        body = b'{"records":[{"data":1},' + one(data, meta)[len('{"records":[') :]
        with pytest.raises(RecordTooLargeError) as caught:
            decode_write(body, limits)
        assert caught.value.code == "record_too_large"
        assert caught.value.detail == {"bytes": size, "max": 20}


def stored_bytes(body: bytes, limits: Limits) -> int:
    return decode_write(body, limits).columns.payload_bytes


def test_a_value_that_no_rewriting_can_save_is_not_rewritten() -> None:
    with pytest.raises(RecordTooLargeError) as caught:
        decode_write(one(b'"' + b"\\u0041" * 1000 + b'"'), Limits(record_bytes_max=100))
    assert caught.value.detail == {"bytes": 1000, "max": 100}


def test_escapes_of_a_large_write_are_rewritten_too() -> None:
    values = [f"{n} é/" * (n % 7 * 500 + 1) for n in range(300)]
    body = json.dumps({"records": [{"data": value} for value in values]}).replace("/", "\\/").encode()
    rows = decode_write(body, LIMITS).columns
    assert column(rows.data) == [json.dumps(value, ensure_ascii=False).encode() for value in values]


def test_tags_and_nodes_are_measured_in_utf8() -> None:
    for field, most in ((b"tag", 256), (b"node", 128)):
        for fits in (b"x" * most, "é".encode() * (most // 2), b"\\u00e9" * (most // 2)):
            decode_write(one(b"1", b',"%b":"%b"' % (field, fits)), LIMITS)
            refused(one(b"1", b',"%b":"%bx"' % (field, fits)))
            refused(b'{"records":[{"data":1,"%b":"ok"},{"data":1,"%b":"%bx"},{"data":1}]}' % (field, field, fits))
    decode_write(b'{"records":[{"data":1}],"node":"%b"}' % (b"n" * 128), LIMITS)
    refused(b'{"records":[{"data":1}],"node":"%b"}' % (b"n" * 129))
    refused(b'{"records":[{"data":1,"node":"own"}],"node":"%b"}' % (b"n" * 129))


def test_meta_has_at_most_64_keys_and_16_kib() -> None:
    fits = b'{"k":"' + b"x" * ((16 << 10) - len('{"k":""}')) + b'"}'
    keys = json.dumps({f"k{n}": "" for n in range(64)}).encode()
    for meta in (fits, keys):
        decode_write(one(b"1", b',"meta":' + meta), LIMITS)
    more = json.dumps({f"k{n}": "" for n in range(65)}).encode()
    for meta in (fits[:-2] + b'x"}', more):
        refused(one(b"1", b',"meta":' + meta))
        refused(b'{"records":[{"data":1},{"data":1,"meta":{}},{"data":1,"meta":' + meta + b"}]}")


def test_the_key_of_the_body_wins_and_an_empty_one_is_none() -> None:
    body = b'{"records":[{"data":1}],"idempotency_key":%b}'
    assert decode_write(one(b"1"), LIMITS, default_key="h").idempotency_key == "h"
    assert decode_write(body % b'"b"', LIMITS, default_key="h").idempotency_key == "b"
    assert decode_write(body % b"null", LIMITS, default_key="h").idempotency_key == "h"
    assert decode_write(body % b'""', LIMITS, default_key="h").idempotency_key is None
    assert decode_write(one(b"1"), LIMITS, default_key="").idempotency_key is None
    assert decode_write(body % b'"b"', LIMITS, default_key="h" * 257).idempotency_key == "b"


def test_a_key_has_at_most_256_bytes_of_utf8() -> None:
    body = b'{"records":[{"data":1}],"idempotency_key":"%b"}'
    for key in ("k" * 256, "é" * 128):
        assert decode_write(body % key.encode(), LIMITS).idempotency_key == key
        assert decode_write(one(b"1"), LIMITS, default_key=key).idempotency_key == key
        refused(body % (key + "x").encode())
        with pytest.raises(InvalidRequestError):
            decode_write(one(b"1"), LIMITS, default_key=key + "x")
    with pytest.raises(InvalidRequestError):
        decode_write(one(b"1"), LIMITS, default_key="\udc80")


def test_types_come_before_counts_and_counts_before_sizes() -> None:
    limits = Limits(batch_records_max=1, record_bytes_max=5)
    refused(b'{"records":[{"data":"too long"},{"data":1,"tag":5}]}', limits)
    refused(b'{"records":[{"data":1},{"data":2}],"config":{"ttl_ms":-1}}', limits)
    with pytest.raises(BatchTooLargeError):
        decode_write(b'{"records":[{"data":"too long"},{"data":1,"tag":"%b"}]}' % (b"t" * 300), limits)
    refused(b'{"records":[{"data":"too long","tag":"%b"}]}' % (b"t" * 300), limits)
    refused(b'{"records":[{"data":"too long"}],"idempotency_key":"%b"}' % (b"k" * 300), limits)


# Depth


def nested(depth: int, opening: bytes, closing: bytes) -> bytes:
    return opening * depth + b"1" + closing * depth


@pytest.mark.parametrize(
    ("opening", "closing", "inside"),
    [
        (b"[", b"]", 0),
        (b'{"a":', b"}", 0),
        (b"[ ", b" ]", 0),
        (b"[[],", b"]", 1),
        (b'["[\\"[",', b"]", 0),
        (b'{"\\u0041{":', b',"]]":[]}', 1),
        (b"[1,", b",[[[[[[]]]]]]]", 6),
    ],
)
def test_a_value_may_nest_128_deep(opening: bytes, closing: bytes, inside: int) -> None:
    decode_write(one(nested(128 - inside, opening, closing)), LIMITS)
    for depth in (129, 200, 5000, 100_000):
        value = nested(depth - inside, opening, closing)
        refused(one(value))
        refused(one(b"1", b',"unknown":' + value))
        refused(one(b"1", b',"meta":' + value))
        beside = nested(depth - inside + 2, opening, closing)
        refused(b'{"records":[{"data":1}],"unknown":%b}' % beside)
        refused(b'{"records":[{"data":1}],"config":{"unknown":%b}}' % beside)


def test_the_shortest_value_that_is_too_deep() -> None:
    decode_write(one(b"[" * 128 + b"]" * 128), LIMITS)
    refused(one(b"[" * 129 + b"]" * 129))


@pytest.mark.parametrize("text", [b"x" * 300, b"[" * 300])
def test_the_deep_value_is_found_among_many(text: bytes) -> None:
    flat = b'{"data":{"a":[1,2,3],"text":"%b"},"tag":"t"}' % text
    for place in (0, 1, 499, 999):
        records = [flat] * 999
        records.insert(place, b'{"data":%b}' % (b"[" * 128 + b"]" * 128))
        assert decode_write(b'{"records":[%b]}' % b",".join(records), LIMITS).columns.count == 1000
        records[place] = b'{"data":%b}' % (b"[" * 129 + b"]" * 129)
        refused(b'{"records":[%b]}' % b",".join(records))


def test_what_is_deep_and_unknown_is_found_among_tags_and_nodes() -> None:
    deep = b'"unknown":%b' % nested(131, b"[", b"]")
    node = b'"node":"%b"' % (b"n" * 100)
    bare = b",".join([b'{"data":1}'] * 50)
    refused(b'{"records":[%b,{"data":1,"node":"own"}],%b,%b}' % (bare, node, deep))
    refused(b'{"records":[%b,{"data":1,"tag":"t","node":"own"}],%b}' % (bare, deep))
    refused(b'{"records":[%b,{"data":1,"meta":{}}],%b}' % (bare, deep))


def test_brackets_in_strings_are_no_depth() -> None:
    text = b'"' + b'[{\\"' * 500 + b'"'
    assert stored(b'["a",' + text + b"," + text + b"]") == b'["a",' + text + b"," + text + b"]"
    decode_write(one(b'"\\u005b"', b',"unknown":' + text), LIMITS)
    decode_write(one(b"1", b',"unknown":[' + b",".join([b"[{}]"] * 500) + b"]"), LIMITS)


# Config


def config_of(text: bytes) -> TopicConfig | None:
    return decode_write(b'{"records":[{"data":1}],"config":%b}' % text, LIMITS).config


def test_a_config_is_read_as_it_is_given() -> None:
    text = b'{"type":"queue","cap_records":5,"durability":"memory","lease_ms":1,"discard":"reject","priority":-7}'
    wanted = TopicConfig(
        type="queue", cap_records=5, durability=Durability.MEMORY, lease_ms=1, discard=Discard.REJECT, priority=-7
    )
    assert config_of(text) == wanted
    assert decode_config(b" " + text + b"\n") == wanted
    assert decode_config(b"{}") == TopicConfig()


U64 = ("ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "lease_ms", "claim_jitter_ms", "max_deliveries")
BOOLEANS = ("durable", "auto_priority", "auto_create", "dedupe_node", "leases_durable")
NO_INTEGER = ("1.0", "1e2", "1.5", "true", '"5"', "[1]", "{}")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, value) for field in U64 for value in (*NO_INTEGER, "null", "-1", str(2**64), "9" * 5000)),
        *(("priority", value) for value in (*NO_INTEGER, str(2**31), str(-(2**31) - 1))),
        *((field, value) for field in BOOLEANS for value in ("1", "0", '"true"', "[]", "null")),
        *(("type", value) for value in ('"stack"', "1", "null", '"Log"')),
        *(("discard", value) for value in ('"new"', "1", "null")),
        *(("durability", value) for value in ('"strong"', '"Fsync"', "1")),
        *(("dead_letter", value) for value in ("1", "[]")),
    ],
)
def test_a_config_is_typed_strictly(field: str, value: str) -> None:
    text = f'{{"{field}":{value}}}'.encode()
    refused(b'{"records":[{"data":1}],"config":%b}' % text)
    with pytest.raises(InvalidRequestError):
        decode_config(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, value) for field in U64 for value in (0, U64_MAX)),
        *(("priority", value) for value in (None, 0, 2**31 - 1, -(2**31))),
        *((field, value) for field in ("durability", "dead_letter") for value in (None,)),
        ("dead_letter", "other"),
    ],
)
def test_a_config_takes_the_whole_range(field: str, value: int | str | None) -> None:
    config = decode_config(json.dumps({field: value}).encode())
    assert getattr(config, field) == value


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"{", b"\xff", b'{"x":"\xff"}', b'{"x":%b}' % nested(128, b"[", b"]"), b"[" * 5000]
)
def test_a_config_that_is_no_object_of_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        decode_config(body)
