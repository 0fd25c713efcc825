"""What readers see: a whole topic page by page, and a picture of everything an engine says about itself."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from driftq.engine.block_fetch import Fetch
from driftq.engine.engine import Engine
from driftq.engine.read.topic_page import Page, PageQuery
from driftq.model.tombstone import Tombstone
from driftq.model.topic_config import Durability
from driftq.testing import ManualRuntime

_PAGES_MAX = 100_000


class Record(NamedTuple):
    """One record, every field a reader can get."""

    seq: int
    ts: int
    data: bytes
    tag: bytes | None
    node: bytes | None
    meta: bytes | None


class Reading(NamedTuple):
    """A whole topic as one reader saw it."""

    records: list[Record]
    tombstones: list[Tombstone]


def records_of(page: Page) -> Iterator[Record]:
    """The records of one page."""
    for source, rows in page.slices:
        first, last = rows[0], rows[-1] + 1
        count = last - first
        times = source.times(first, last)
        found = zip(
            range(source.first_seq + first, source.first_seq + last),
            [times] * count if isinstance(times, int) else times,
            source.data(first, last),
            source.tags(first, last) or [None] * count,
            source.nodes(first, last) or [source.batch_node] * count,
            source.metas(first, last) or [None] * count,
            strict=True,
        )
        records = list(map(Record._make, found))
        yield from records if count == len(rows) else [records[row - first] for row in rows]


def page_after(engine: Engine, runtime: ManualRuntime, name: str, query: PageQuery) -> Page:
    """One page, whatever has to be fetched for it."""
    for _ in range(_PAGES_MAX):
        found = engine.diff(name, query)
        if not isinstance(found, Fetch):
            return found
        runtime.run_until_idle()
        found.result()
    raise AssertionError(f"a page of {name} is fetched for ever")


def read_all(engine: Engine, runtime: ManualRuntime, name: str, *, limit: int = 256) -> Reading:
    """Every page from 0 to the end."""
    reading = Reading([], [])
    cursor = 0
    for _ in range(_PAGES_MAX):
        page = page_after(engine, runtime, name, PageQuery(cursor, limit))
        if page.tombstone is not None:
            reading.tombstones.append(page.tombstone)
        reading.records.extend(records_of(page))
        if page.caught_up:
            return reading
        assert page.next_from_seq > cursor, f"a reader of {name} stands still at {cursor}"
        cursor = page.next_from_seq
    raise AssertionError(f"a reader of {name} never reaches the end")


def picture(engine: Engine, readings: dict[str, Reading]) -> dict[str, Any]:
    """Every logical field of every topic, with what readers saw: equal pictures are equal states."""
    topics: dict[str, Any] = {}
    for topic in engine.catalog.visible():
        engine.topic(topic.name)
        reading = readings[topic.name]
        topics[topic.name] = {
            "id": topic.id,
            "config": topic.config,
            "created_ts": topic.created_ts,
            "head": topic.head,
            "next_seq": topic.in_flight.next_seq,
            "earliest": topic.earliest,
            "cap_lost": topic.cap_lost,
            "ttl_lost": topic.ttl_lost,
            "last_ts": topic.last_ts if topic.count else 0,
            "count": topic.count,
            "payload": topic.payload,
            "holes": list(topic.holes.all),
            "keys": sorted(topic.keys.items()),
            "reserved": max(topic.reserved, topic.head) if topic.durability is Durability.DISK else 0,
            "records": reading.records,
            "tombstones": reading.tombstones,
        }
    usage = engine.blocks.usage
    return {
        "topics": topics,
        "records": usage.records,
        "payload": usage.payload,
        "next_id": engine.catalog.next_id,
    }


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Where two pictures differ, one line each."""
    if isinstance(one, dict) and isinstance(other, dict):
        found = []
        for key in sorted({*one, *other}, key=str):
            found += differences(one.get(key), other.get(key), f"{path}.{key}" if path else str(key))
        return found
    return [] if one == other else [f"{path}: {one!r} != {other!r}"]
