"""Checksums of rows: the same for a lake and a live topic, and different for any change."""

import datetime as dt

import pyarrow as pa

from driftq.pipeline.lake.row_sums import RowSum, hashes, sum_of

MAP = pa.map_(pa.string(), pa.string())
AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def rows(meta: pa.Array, **more: list[object]) -> pa.Table:
    count = len(meta)
    columns = {"seq": list(range(1, count + 1)), "ts": [AT] * count, "node": ["n"] * count, "tag": [None] * count}
    texts = {"data": ["1"] * count}
    return pa.table({**columns, **texts, **more, "meta": meta})


def test_a_map_and_json_text_have_the_same_hash_whatever_their_order() -> None:
    maps = pa.array([[("a", "1"), ("b", "2")], None, [], [("é", "😀")]], MAP)
    texts = pa.array(['{"b":"2","a":"1"}', None, "{}", '{"\\u00e9":"😀"}'])
    assert hashes(rows(maps)) == hashes(rows(texts))
    assert hashes(rows(maps).slice(1)) == hashes(rows(maps))[1:], "a slice of a map starts in the middle"
    joined = pa.concat_tables([rows(maps).slice(0, 2), rows(maps).slice(2)])
    assert hashes(joined) == hashes(rows(maps))


def test_every_value_counts() -> None:
    meta = pa.array([[("a", "1")], [("a", "1")]], MAP)
    known = sum_of(hashes(rows(meta)))
    changes: list[dict[str, list[object]]] = [
        {"seq": [2, 3]},
        {"node": ["n", None]},
        {"tag": ["", None]},
        {"data": ["1", "2"]},
        {"data": ["1", None]},
    ]
    changes.append({"ts": [AT, AT + dt.timedelta(microseconds=1)]})
    for change in changes:
        assert sum_of(hashes(rows(meta, **change))) != known, change
    assert sum_of(hashes(rows(pa.array([[("a", "1")], [("a", "2")]], MAP)))) != known


def test_rows_that_swap_their_seqs_have_another_sum() -> None:
    meta = pa.nulls(2, MAP)
    one, other = rows(meta, data=["1", "2"]), rows(meta, data=["2", "1"])
    assert sum_of(hashes(one)) != sum_of(hashes(other))


def test_sums_add_and_subtract_in_any_order() -> None:
    found = hashes(rows(pa.nulls(9, MAP)))
    parts = [sum_of(found[:4]), sum_of(found[4:])]
    assert RowSum().plus(parts[1]).plus(parts[0]) == sum_of(found)
    assert sum_of(found).minus(parts[0]) == parts[1]
