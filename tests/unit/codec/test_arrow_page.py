"""A page as Arrow: the same rows as in JSON, in batches of the right size."""

import random
from typing import Any

import pyarrow as pa
import pytest
from msgspec import json

from driftq.codec.arrow_page import BATCH_LEAST, BATCH_MOST, arrow_pieces
from driftq.codec.record_json import Fields
from driftq.engine.read.topic_page import Page
from driftq.model.topic_config import Durability
from driftq.testing import EngineRig, decoded


def _stream(page: Page, **fields: Any) -> Any:
    pieces = arrow_pieces("a", page, Fields(arrow=True, **{"tags": True, **fields}))
    return pa.ipc.open_stream(b"".join(pieces))


def _as_json(reader: Any) -> list[dict[str, Any]]:
    """The rows as the wire has them in JSON."""
    found = []
    for row in reader.read_all().to_pylist():
        record = {"$seq": row["seq"], "$ts": int(row["ts"].timestamp() * 1000)}
        record |= {f"${name}": row[name] for name in ("node", "tag") if row[name] is not None}
        record |= {} if row["meta"] is None else {"meta": json.decode(row["meta"])}
        found.append(record | {"data": json.decode(row["data"])})
    return found


@pytest.mark.parametrize("seed", range(6))
def test_the_rows_are_those_of_json(seed: int) -> None:
    rng = random.Random(seed)
    rig = EngineRig(segment_max_events=700, wal_file_bytes=1 << 20, cache_bytes=1)
    rig.put("a", rng.choice([Durability.FSYNC, Durability.EPHEMERAL]), cap_records=rng.choice([0, 2500]))
    for number in range(12):
        count = rng.choice([1, 3, 60, 300, 900])
        some: dict[str, Any] = {}
        if rng.getrandbits(1):
            some["tags"] = [rng.choice([None, "t:1", 'q"é']) for _ in range(count)]
        if rng.getrandbits(1):
            some["metas"] = [rng.choice([None, b'{"k":"v"}']) for _ in range(count)]
        if rng.getrandbits(1):
            some["batch_node"] = "n1"
        elif rng.getrandbits(1):
            some["nodes"] = [rng.choice([None, "n1", "n2"]) for _ in range(count)]
        rig.write("a", *([number, row, "ü"] for row in range(count)), **some)
        rig.clock.advance(rng.choice([0, 5]))
        if rng.random() < 0.3:
            rig.delete("a", match=["tag", "Eq", "t:1"])
    for nodes in (frozenset[bytes](), frozenset([b"n1"])):
        page = rig.page("a", 0, 1_000_000, nodes=nodes, bulk=True, max_batch_bytes=0)
        reader = _stream(page)
        assert reader.schema.metadata[b"next_from_seq"] == str(page.next_from_seq).encode()
        assert _as_json(reader) == decoded(page)


def test_batches_are_blocks_small_ones_joined_and_large_ones_cut() -> None:
    rig = EngineRig(segment_max_events=100_000, wal_file_bytes=8 << 20)
    rig.put("a")
    for count in (300, 300, 40_000, 300, 2000, 10, 20):
        rig.write("a", *range(count))
    sizes = [batch.num_rows for batch in _stream(rig.page("a", 0, 1_000_000, bulk=True, max_batch_bytes=0))]
    assert sizes == [600, BATCH_MOST, BATCH_MOST, 40_000 - 2 * BATCH_MOST, 300, 2000, 30]
    assert all(size >= BATCH_LEAST for size in sizes if size not in (300, 30))


def test_the_schema_tells_what_json_tells_beside_the_records() -> None:
    rig = EngineRig()
    rig.put("a", cap_records=2)
    for number in range(5):
        rig.write("a", number)
    page = rig.page("a", 0, 1, bulk=True)
    facts = {key.decode(): value.decode() for key, value in _stream(page).schema.metadata.items()}
    tombstone = json.decode(facts.pop("tombstone"))
    assert (tombstone["gap_from"], tombstone["gap_to"], tombstone["reason"]) == (1, 3, "cap")
    assert facts == {
        "topic": "a",
        "epoch": str(rig.topic("a").id),
        "next_from_seq": "4",
        "head_seq": "5",
        "earliest_seq": "4",
        "caught_up": "false",
        "lag": "1",
    }


def test_an_empty_page_is_a_schema_and_an_end() -> None:
    rig = EngineRig()
    rig.put("a")
    reader = _stream(rig.page("a", bulk=True))
    assert reader.read_all().num_rows == 0
    assert [str(field.type) for field in reader.schema] == [
        "uint64",
        "timestamp[ms, tz=UTC]",
        "string",
        "string",
        "string",
        "string",
    ]
    assert [field.name for field in reader.schema if not field.nullable] == ["seq", "ts", "data"]


def test_columns_that_are_not_wanted_are_empty() -> None:
    rig = EngineRig()
    rig.put("a")
    rig.write("a", 1, tags=["t"], metas=[b"{}"])
    (row,) = _stream(rig.page("a", bulk=True), tags=False, meta=False).read_all().to_pylist()
    assert (row["tag"], row["meta"], row["data"]) == (None, None, "1")


def test_cold_rows_are_those_that_were_hot() -> None:
    rig = EngineRig(cold_dir="/cold", segment_max_events=300, hot_retain_segments=0, wal_file_bytes=1 << 20)
    rig.put("a")
    for number in range(4):
        rig.write("a", *([number, row] for row in range(320)), tags=["t", *[None] * 319])
    before = decoded(rig.page("a", 0, 1_000_000, bulk=True, max_batch_bytes=0))
    rig.runtime.advance(20_000)
    assert any(segment.cold for segment in rig.topic("a").segments)
    page = rig.page("a", 0, 1_000_000, bulk=True, max_batch_bytes=0)
    assert page.cold_segments
    assert _as_json(_stream(page)) == before
