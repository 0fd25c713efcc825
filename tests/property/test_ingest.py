"""Any body of a write against a plain reading of the contract by Python's own `json`, and values there and back."""

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from driftq.codec.write_body import decode_write
from driftq.errors import InvalidRequestError
from driftq.model.limits import Limits

SMALL = Limits(batch_records_max=3, record_bytes_max=60, meta_bytes_max=30, tag_bytes_max=6, node_bytes_max=5)


# The contract, read plainly


class RefusalError(Exception):
    """What the contract says of a bad body: a code."""


class Number(str):
    """A number as written."""


class Pairs(list[tuple[str, Any]]):
    """An object as written: order and repeated keys kept."""


def strict(text: str) -> Any:
    """Python's `json`, without what it takes beyond the standard."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    return json.loads(text, parse_int=Number, parse_float=Number, parse_constant=refuse, object_pairs_hook=Pairs)


def depth(value: Any) -> int:
    if isinstance(value, Pairs):
        return 1 + max((depth(inner) for _, inner in value), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


def compact(value: Any) -> str:
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{compact(key)}:{compact(inner)}" for key, inner in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(compact, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def size(text: str) -> int:
    return len(text.encode())


def check(good: bool, code: str = "invalid_request") -> None:
    if not good:
        raise RefusalError(code)


def fields(value: Any, **types: Any) -> dict[str, Any]:
    """An object's known fields, each time of these types; the last of a repeated one."""
    check(isinstance(value, Pairs))
    for key, inner in value:
        check(key not in types or any(is_a(inner, kind) for kind in types[key]))
    return dict(value)


def is_a(value: Any, kind: Any) -> bool:
    if kind is str:
        return isinstance(value, str) and not isinstance(value, Number)
    if kind is list:
        return isinstance(value, list) and not isinstance(value, Pairs)
    return kind is object or (value is None if kind is None else isinstance(value, kind))


def reading(body: bytes, limits: Limits) -> list[tuple[Any, ...]]:
    """Data, tag, node and meta of every record, as bytes."""
    try:
        parsed = strict(body.decode())
        compact(parsed).encode()
    except (ValueError, RecursionError):
        raise RefusalError("invalid_request") from None
    top = fields(
        parsed,
        records=[list],
        node=[str, None],
        idempotency_key=[str, None],
        create=[bool, None],
        config=[Pairs, None],
        disable_backpressure=[bool],
    )
    check("records" in top)
    for name, inner in parsed:
        for record in inner if name == "records" else []:
            found = fields(record, data=[object], tag=[str, None], node=[str, None], meta=[Pairs, None])
            check("data" in found)
            metas = [meta for key, meta in record if key == "meta" and meta is not None]
            check(all(is_a(text, str) for meta in metas for _, text in meta))
        for key, value in inner or [] if name == "config" else []:
            check(
                key != "ttl_ms"
                or (isinstance(value, Number) and re.fullmatch(r"0|-0|[1-9]\d{0,18}", value) is not None)
            )
    check(len(top["records"]) > 0)
    check(len(top["records"]) <= limits.batch_records_max, "batch_too_large")
    check(depth(parsed) <= 128 + 3)
    check(size(top.get("idempotency_key") or "") <= 256)
    rows = [row(dict(record), top.get("node"), limits) for record in top["records"]]
    for data, _, _, meta in rows:
        check(len(data) + len(meta or b"") <= limits.record_bytes_max, "record_too_large")
    return rows


def row(record: dict[str, Any], batch_node: str | None, limits: Limits) -> tuple[Any, ...]:
    tag, node, meta = record.get("tag"), record.get("node"), record.get("meta")
    check(size(tag or "") <= limits.tag_bytes_max)
    check(max(size(node or ""), size(batch_node or "")) <= limits.node_bytes_max)
    text = None
    if meta is not None:
        text = compact(Pairs(dict(meta).items()))
        check(len(dict(meta)) <= 64 and size(text) <= limits.meta_bytes_max)
    node = batch_node if node is None else node
    return compact(record["data"]).encode(), *(None if v is None else v.encode() for v in (tag, node, text))


def outcome(body: bytes, limits: Limits) -> list[tuple[Any, ...]] | str:
    """What ingest makes of a body, in the same form."""
    try:
        rows = decode_write(body, limits).columns
    except InvalidRequestError as error:
        return error.code
    assert rows.payload_bytes == len(rows.data.data) + (len(rows.meta.data) if rows.meta else 0)
    assert rows.batch_node is None or rows.node is None
    return [
        (
            rows.data[n],
            rows.tag and rows.tag[n],
            rows.node[n] if rows.node else rows.batch_node,
            rows.meta and rows.meta[n],
        )
        for n in range(rows.count)
    ]


def expected(body: bytes, limits: Limits) -> list[tuple[Any, ...]] | str:
    try:
        return reading(body, limits)
    except RefusalError as refusal:
        return str(refusal)


# Values there and back

numbers = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"\A-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,9})?([eE][+-]?[0-9]{1,4})?\Z"),
).map(Number)
strings = st.one_of(st.text(), st.text(alphabet='[]{}",:\\/ \n\t\u0000\u001fa\u00e9\u2028\ud7ff\U0001f600'))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, strings),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5), st.lists(st.tuples(strings, inner), max_size=5).map(lambda pairs: Pairs(pairs))
    ),
    max_leaves=20,
)


def spell(value: Any, chance: random.Random) -> str:
    """One of the many ways to write the value: spaces and escapes by chance."""

    def space() -> str:
        return "".join(chance.choices(" \n\r\t", k=chance.choice((0, 0, 0, 1, 3))))

    if isinstance(value, Number):
        text = str(value)
    elif isinstance(value, str):
        text = '"' + "".join(spell_character(character, chance) for character in value) + '"'
    elif isinstance(value, Pairs):
        inner = (f"{spell(key, chance)}:{spell(item, chance)}" for key, item in value)
        text = "{" + (",".join(inner) or space()) + "}"
    elif isinstance(value, list):
        text = "[" + (",".join(spell(item, chance) for item in value) or space()) + "]"
    else:
        text = json.dumps(value)
    return space() + text + space()


def spell_character(character: str, chance: random.Random) -> str:
    units = character.encode("utf-16-be")
    long = "".join(f"\\u{units[n]:02x}{units[n + 1]:02X}" for n in range(0, len(units), 2))
    short = json.dumps(character, ensure_ascii=False)[1:-1]
    return chance.choice((short, short, long, "\\/" if character == "/" else short))


@given(st.lists(values, min_size=1, max_size=5), st.randoms(use_true_random=False))
@example([Pairs([("a", Number("1")), ("a", Number("-0"))])], random.Random(0))
def test_a_value_is_stored_compact_and_reads_the_same(sent: list[Any], chance: random.Random) -> None:
    records = [Pairs([("data", value)]) for value in sent]
    body = spell(Pairs([("records", records)]), chance).encode()
    rows = decode_write(body, Limits()).columns
    for n, value in enumerate(sent):
        text = rows.data[n]
        assert text is not None
        assert strict(text.decode()) == value
        assert text.decode() == compact(value)


@given(
    st.lists(
        st.tuples(values, st.none() | strings, st.none() | strings, st.none() | st.dictionaries(strings, strings))
    ),
    st.none() | strings,
    st.randoms(use_true_random=False),
)
def test_any_write_is_read_as_the_contract_reads_it(
    records: list[tuple[Any, str | None, str | None, dict[str, str] | None]], node: str | None, chance: random.Random
) -> None:
    shown = [
        Pairs([("data", data), ("tag", tag), ("node", own), ("meta", None if meta is None else Pairs(meta.items()))])
        for data, tag, own, meta in records
    ]
    body = spell(Pairs([("node", node), ("records", shown)]), chance).encode()
    for limits in (Limits(), SMALL):
        assert outcome(body, limits) == expected(body, limits)


# Bodies of chance

SEEDS = [
    b'{"records":[{"data":{"n":1,"deep":[{"a":null},[],{}]},"tag":"t:1","node":"n1","meta":{"k":"v","":""}}]}',
    '{"records":[{"data":"é\u2028\U0001f600 \\" \\\\ \\u0000","tag":"t:ü","meta":{"ü":"ü"}},{"data":null}]}'.encode(),
    b'{"records":[{"data":9007199254740993},{"data":-0.5e-7},{"data":[true,false,"",18446744073709551615]}],"node":"b"}',
    b'{ "records" : [ { "data" : 1 , "tag" : null } , { "data" : "\\ud83d\\ude00\\/" } ] , "create" : false }',
    b'{"records":[{"data":[[[[1]]]],"node":"x"}],"config":{"ttl_ms":5},"idempotency_key":"k","disable_backpressure":true}',
    b'{"records":[{"data":1},{"data":2},{"data":3},{"data":"\\u0041"}]}',
    b'{"records":[{"data":' + b"[" * 127 + b"0" + b"]" * 127 + b"}]}",
    b'{"records":[{"data":1,"x":' + b'{"a":' * 126 + b"0" + b"}" * 126 + b"}]}",
]
TOKENS = [
    *(bytes([byte]) for byte in b'{}[]:,"\\/ \n\t0123456789-+.eEuntrfabd\x00\x1f\x7f\x80\xff\xc3\xa9\xed\xf0'),
    *(b'"records"', b'"data"', b'"tag"', b'"node"', b'"meta"', b'"config"', b"null", b"true", b"NaN", b"Infinity"),
    *(b"\\u0041", b"\\ud800", b"\\udc00", b"\\u005b", b"\\/", b"\\\\", b'\\"', b"[[", b"]]", b'{"a":', b'{"data":1},'),
    *(b"1e5", b"1e999", b"01", b"\xef\xbb\xbf", "é".encode(), "\U0001f600".encode(), b"xxxxxxxx"),
]


def bodies_of_chance(count: int, seed: int) -> Iterator[bytes]:
    """Good bodies, spoilt a little."""
    chance = random.Random(seed)
    for _ in range(count):
        body = bytearray(chance.choice(SEEDS))
        for _ in range(chance.choice((0, 1, 1, 1, 2, 2, 4, 12))):
            start = chance.randrange(len(body) + 1)
            end = min(len(body), start + chance.choice((0, 0, 1, 1, 2, 8)))
            kind = chance.randrange(8)
            if kind < 5:
                body[start:end] = chance.choice(TOKENS)
            elif kind == 5:
                body[start:end] = bytes(body[chance.randrange(len(body) + 1) :][: chance.randrange(20)])
            elif kind == 6:
                body[start:end] = chance.randbytes(2)
            else:
                del body[start:]
        yield bytes(body)


@pytest.mark.parametrize("seed", range(4))
def test_spoilt_bodies_are_refused_or_read_as_the_contract_reads_them(seed: int) -> None:
    seen: dict[str, int] = {}
    for body in bodies_of_chance(5000, seed):
        for limits in (Limits(), SMALL):
            found = outcome(body, limits)
            assert found == expected(body, limits), body
            kind = found if isinstance(found, str) else "taken"
            seen[kind] = seen.get(kind, 0) + 1
    assert set(seen) == {"taken", "invalid_request", "batch_too_large", "record_too_large"}
    assert min(seen.values()) > 5, seen


LEVELS = ["[%s]", '{"a[":%s}', "[[],%s]", '[%s,{"]":[[]]}]', '["\\\\\\"[",%s]', '{"x":[1, 2],"\\u005b":%s}']
PLACES = ['{"records":[{"data":%s}]}', '{"records":[{"data":1,"x":%s}]}', '{"x":%s,"records":[{"data":"\\u005b"}]}']


@given(st.integers(120, 132), st.sampled_from(PLACES), st.integers(1, 5), st.randoms(use_true_random=False))
def test_depth_is_counted_wherever_it_is(levels: int, place: str, kinds: int, chance: random.Random) -> None:
    text = "1"
    for kind in chance.choices(LEVELS[:kinds], k=levels):
        text = kind.replace("%s", text)
    body = place.replace("%s", text).encode()
    assert outcome(body, Limits()) == expected(body, Limits())


@given(st.binary(max_size=300))
@settings(max_examples=200)
def test_bytes_of_any_kind_are_refused_without_another_error(noise: bytes) -> None:
    for body in (noise, b'{"records":[{"data":' + noise + b"}]}", b'{"records":[{"data":"' + noise + b'"}]}'):
        assert outcome(body, Limits()) == expected(body, Limits())
