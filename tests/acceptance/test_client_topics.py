"""The SDK against a real server: topics, records, tables, queues, cursors, staged writes and routers."""

import asyncio
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from driftq.client import (
    ApiError,
    AsyncClient,
    BadRequestError,
    CaughtUp,
    Client,
    ConfigDiffersError,
    ConflictError,
    NewRecord,
    NotFoundError,
    Part,
    Record,
    Tombstone,
    TopicConfig,
    TopicFullError,
    TopicGone,
    TransportError,
    UnauthorizedError,
)
from driftq.model.topic_config import Durability
from tests.support.process import serving


def test_what_is_written_is_read_with_all_that_belongs_to_it(client: Client) -> None:
    topic = client.topic("written")
    assert topic.create(durability="fsync").created
    one = topic.append({"n": 1}, tag="t", node="here", meta={"k": "v"})
    two = topic.write([{"data": 2}, NewRecord(None, tag="u")], return_seqs=True)
    raw = topic.append_raw(b'{"n": 4}\n"five"\n', tag="raw")
    assert (one.last_seq, two.seqs, raw.first_seq, raw.count) == (1, [2, 3], 4, 2)
    found = [item for item in topic.read() if isinstance(item, Record)]
    assert [(item.seq, item.data) for item in found] == [(1, {"n": 1}), (2, 2), (3, None), (4, {"n": 4}), (5, "five")]
    assert (found[0].tag, found[0].node, found[0].meta, found[4].tag) == ("t", "here", {"k": "v"}, "raw")
    state = topic.info(wait_synced=5, wait_ms=5000)
    assert (state.head_seq, state.synced_seq, state.config.durability) == (5, 5, "fsync")
    assert topic.diff(3, limit=1).next_from_seq == 4
    assert topic.delete_records(match=("tag", "Glob", "ra*")).deleted == 2
    assert topic.delete().deleted


def test_create_makes_a_topic_and_leaves_one_that_exists(client: Client) -> None:
    topic = client.topic("created")
    assert topic.create(type="queue", durability="fsync", lease_ms=1).created
    before = topic.info().config
    again = topic.create(type="queue", durability="fsync", lease_ms=1)
    assert (again.created, again.config) == (False, before)
    assert (topic.create().created, topic.create(durable=True).created) == (False, False)
    assert topic.create(TopicConfig(type="queue", durability=Durability.FSYNC)).config == before
    assert topic.create(before).config == before
    for asked, differences in (
        ({"durability": "disk"}, {"durability": ("fsync", "disk")}),
        ({"durable": False, "cap_records": 5}, {"durable": (True, False), "cap_records": (0, 5)}),
        ({"type": "log"}, {"type": ("queue", "log")}),
        ({"dead_letter": "other"}, {"dead_letter": (None, "other")}),
    ):
        with pytest.raises(ConfigDiffersError) as refused:
            topic.create(**asked)
        assert (refused.value.topic, sorted(refused.value.differences.items())) == (
            "created",
            sorted(differences.items()),
        )
    with pytest.raises(ConfigDiffersError, match="exists with cap_records=0 instead of 7; change it with update"):
        topic.create(TopicConfig(type="queue", cap_records=7))
    assert topic.info().config == before


def test_update_changes_what_it_names_and_replace_changes_all(client: Client) -> None:
    topic = client.topic("updated")
    with pytest.raises(NotFoundError):
        topic.update(cap_records=5)
    topic.create(durability="fsync", ttl_ms=60_000)
    changed = topic.update(cap_records=5).config
    assert (changed.durability, changed.ttl_ms, changed.cap_records) == ("fsync", 60_000, 5)
    changed = topic.update(ttl_ms=None, priority=3).config
    assert (changed.durability, changed.ttl_ms, changed.cap_records, changed.priority) == ("fsync", 0, 5, 3)
    for wrong in ({}, {"cap_recrods": 5}, {"cap_records": "many"}):
        with pytest.raises(TypeError):
            topic.update(**wrong)
    with pytest.raises(BadRequestError):
        topic.update(cap_records=-1)
    assert topic.info().config == changed
    replaced = topic.replace(cap_records=6)
    assert (replaced.created, replaced.config) == (False, TopicConfig(cap_records=6).resolved("updated"))
    assert client.topic("replaced").replace(durability="fsync").created


def test_of_services_that_create_one_topic_at_the_same_time_one_decides(url: str) -> None:
    """proves: G-CONF-2"""

    async def use() -> list[int]:
        async with AsyncClient(url) as client:
            tries = [client.topic("contested").create(cap_records=n) for n in range(1, 9)]
            found = await asyncio.gather(*tries, return_exceptions=True)
            made = [one for one in found if not isinstance(one, BaseException)]
            assert [one.created for one in made] == [True]
            assert all(isinstance(one, ConfigDiffersError) for one in found if isinstance(one, BaseException))
            assert (await client.topic("contested").update(ttl_ms=5)).config.cap_records == made[0].config.cap_records
            return [made[0].config.cap_records, (await client.topic("contested").info()).config.cap_records]

    first, last = asyncio.run(use())
    assert first == last


def test_a_repeated_write_has_no_second_effect(client: Client) -> None:
    topic = client.topic("once")
    first = topic.append(1, idempotency_key="same")
    again = topic.append(1, idempotency_key="same")
    assert (again.deduped, again.first_seq, topic.info().count) == (True, first.first_seq, 1)
    assert not topic.append(1).deduped


def test_a_cursor_above_the_head_is_said_with_its_numbers_and_is_never_called_a_loss(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    topic = client.topic("above")
    topic.append(1)
    topic.append(2)
    assert list(topic.read(999, epoch=topic.info().epoch)) == []
    assert caplog.messages == ["topic above: cursor 999 is above the head 2"]
    caplog.clear()
    gap, *rest = list(topic.read(999))
    assert caplog.messages == ["topic above: cursor 999 is above the head 2"]
    assert isinstance(gap, Tombstone)
    assert gap.text() == (
        "the cursor is above the head 2, or the topic was deleted and created again since; reading starts at seq 1"
    )
    assert [item.data for item in rest if isinstance(item, Record)] == [1, 2]


def test_reading_runs_over_many_pages_and_tells_of_gaps(client: Client) -> None:
    topic = client.topic("pages")
    topic.create(cap_records=2500)
    answers = list(topic.append_lines(b"%d\n" % n for n in range(6000)))
    assert sum(answer.count for answer in answers) == 6000
    gap, *rest = list(topic.read(10))
    assert isinstance(gap, Tombstone)
    assert (gap.gap_from, gap.gap_to, gap.reason) == (11, 3500, "cap")
    assert [item.data for item in rest if isinstance(item, Record)] == list(range(3500, 6000))


def test_a_topic_is_a_table_both_ways(client: Client) -> None:
    topic = client.topic("table")
    frame = {"user": ["a", "b", None], "amount": [1.5, 2.0, 3.25]}
    assert [one.count for one in topic.write_arrow(pa.table(frame))] == [3]
    text = pa.table({"data": ["4", "[5]"], "tag": ["x", None]})
    assert topic.write_arrow(text, idempotency_key="k")[0].first_seq == 4
    assert topic.write_arrow(text, idempotency_key="k")[0].deduped
    table = topic.to_arrow()
    assert table.column_names == ["seq", "ts", "node", "tag", "meta", "data"]
    assert table["data"].to_pylist()[0] == '{"user":"a","amount":1.5}'
    assert table["tag"].to_pylist() == [None, None, None, "x", None]
    assert table.schema.metadata[b"next_from_seq"] == b"5"
    assert topic.to_arrow(1, limit=2)["seq"].to_pylist() == [2, 3]
    for none, stands in ((topic.to_arrow(limit=0), b"0"), (topic.to_arrow(3, limit=0), b"3")):
        assert none.num_rows == 0
        assert none.schema.equals(table.schema)
        assert (none.schema.metadata[b"next_from_seq"], none.schema.metadata[b"tombstones"]) == (stands, b"[]")
    assert topic.to_arrow(from_ts=0, limit=0).schema.metadata[b"next_from_seq"] == b"0"
    assert len(topic.to_pandas(limit=0)) == len(topic.to_polars(limit=0)) == 0
    assert list(topic.to_pandas()["seq"]) == topic.to_polars()["seq"].to_list() == [1, 2, 3, 4, 5]
    assert topic.write_arrow(topic.to_pandas()[["data"]])[0].count == 5
    assert [page.num_rows for page in topic.arrow_pages(page_records=4)] == [4, 4, 2]


def test_frames_of_pandas_and_polars_are_written_with_their_times_spans_and_categories(client: Client) -> None:
    topic = client.topic("frames")
    moments = pd.DatetimeIndex(["2026-01-02T03:04:05", pd.NaT])
    frame = pd.DataFrame({"at": moments, "took": moments - moments[0], "kind": pd.Categorical(["a", "b"])})
    assert topic.write_arrow(frame)[0].count == 2
    assert topic.write_arrow(pl.DataFrame({"at": moments[:1].to_pydatetime(), "kind": ["a"]}))[0].count == 1
    first, second, third = (item.data for item in topic.read() if isinstance(item, Record))
    assert (first["at"], first["kind"]) == ("2026-01-02T03:04:05", "a")
    assert first["took"].startswith("P0D")
    assert (second["at"], second["took"]) == (None, None)
    assert third["kind"] == "a"


def test_what_a_topic_gave_as_a_table_another_takes(client: Client) -> None:
    source = client.topic("given")
    source.write([NewRecord(n, tag=f"t{n}", meta={"k": "v"}) for n in range(3)])
    for name, table in {
        "arrow": source.to_arrow(),
        "pandas": source.to_pandas().astype({"tag": "category"}),
        "polars": source.to_polars(),
    }.items():
        copy = client.topic(f"taken.{name}")
        copy.write_arrow(table)
        assert copy.to_arrow().select(["tag", "meta", "data"]).equals(source.to_arrow().select(["tag", "meta", "data"]))


def test_a_table_says_what_is_missing_from_it(client: Client) -> None:
    topic = client.topic("trimmed")
    topic.create(cap_records=10)
    topic.append_raw(b"".join(b"%d\n" % n for n in range(30)))
    table = topic.to_arrow(5)
    assert table.num_rows == 10
    assert b'"gap_from":6' in table.schema.metadata[b"tombstones"]


def test_a_reader_that_is_closed_gives_nothing_more_of_its_page(client: Client) -> None:
    topic = client.topic("closed-reader")
    topic.append_raw(b"1\n2\n3\n")
    with topic.read() as records:
        first = next(records)
    assert isinstance(first, Record)
    assert first.data == 1
    assert list(records) == []


def test_an_asynchronous_reader_that_is_closed_gives_nothing_more_of_its_page(url: str, client: Client) -> None:
    client.topic("closed-reader-async").append_raw(b"1\n2\n3\n")

    async def use() -> tuple[list[object], list[object]]:
        async with AsyncClient(url) as other, other.topic("closed-reader-async").read() as records:
            first: list[object] = [await anext(records)]
            await records.close()
            return first, [item async for item in records]

    first, rest = asyncio.run(use())
    assert (len(first), rest) == (1, [])


def test_a_queue_hands_out_settles_and_gives_up(client: Client) -> None:
    queue = client.topic("jobs")
    queue.create(type="queue", max_deliveries=1, dead_letter="jobs.dead")
    for n in range(3):
        queue.push(n)
    done, back, late = queue.claim(3).claimed
    assert queue.ack(done).acked == 1
    assert queue.nack([back]).nacked == 1
    assert str(late.seq) in queue.extend(late, lease_ms=60_000).deadlines
    assert queue.ack(done).skipped == [done.seq]
    assert list(queue.dead_letters()) == []
    assert queue.claim(5).count == 0
    assert [item.data for item in queue.dead_letters() if isinstance(item, Record)] == [1]
    client.topic("not-jobs").append("a record")
    with pytest.raises(ConflictError, match="not_a_queue"):
        client.topic("not-jobs").claim()


def test_jobs_are_pushed_as_there_is_room(client: Client) -> None:
    queue = client.topic("pushed")
    queue.create(type="queue")
    queue.append_raw(b"1\n2\n3\n")
    with queue.work(2) as jobs:
        first, second = next(jobs), next(jobs)
        assert [first.data, second.data] == [1, 2]
        assert queue.claim(node="other").claimed[0].data == 3
        queue.push(4)
        queue.ack(first)
        assert next(jobs).data == 4
        queue.delete()
        assert list(jobs) == []
    with pytest.raises(NotFoundError):
        next(queue.work())


def test_named_cursors_and_staged_writes(client: Client) -> None:
    topic = client.topic("staged")
    topic.create()
    for part in (0, 1):
        topic.stage([{"data": part}], writer="w", batch=1, part=part)
    assert topic.info().count == 0
    assert topic.commit(writer="w", batch=1, parts=[Part(1), Part(0)]).count == 2
    assert topic.commit(writer="w", batch=1, parts=[Part(1), Part(0)]).deduped
    assert topic.writer("w").last_batch == 1
    topic.stage([{"data": 3}], writer="w", batch=2, part=0)
    assert topic.drop_staged("w").dropped == 1
    assert topic.set_cursor("reader", 2, meta={"by": "me"}).moved
    assert [(one.cursor, one.seq, one.meta) for one in topic.cursors()] == [("reader", 2, {"by": "me"})]
    assert topic.cursor("reader").lag == 0
    assert topic.delete_cursor("reader").deleted
    assert topic.segments().head_seq == 2


def test_routers_copy(client: Client) -> None:
    assert client.put_router("a->b", "route.a", "route.b", filter="keep").created
    client.topic("route.a").write([{"data": 1, "tag": "keep"}, {"data": 2}])
    assert [item.data for item in client.topic("route.b").read() if isinstance(item, Record)] == [1]
    assert client.router("a->b").forwarded_total == 1
    assert [row.router for row in client.routers(source="route.a")] == ["a->b"]
    assert client.delete_router("a->b").deleted


def test_lists_are_paged_through(client: Client) -> None:
    for n in range(120):
        client.topic(f"many.{n:03}").create()
    assert [row.topic for row in client.topics(prefix="many.")] == [f"many.{n:03}" for n in range(120)]


def test_a_watch_of_many_topics_tells_what_happens(client: Client) -> None:
    for name in ("watch.a", "watch.b"):
        client.topic(name).append(name)
    with client.watch({"watch.a": 0, "watch.b": 0}) as events:
        first = [next(events) for _ in range(4)]
        assert [(one.topic, type(one.item)) for one in first] == [
            ("watch.a", Record),
            ("watch.a", CaughtUp),
            ("watch.b", Record),
            ("watch.b", CaughtUp),
        ]
        client.topic("watch.b").append(2)
        assert next(events).item.data == 2  # type: ignore[union-attr]
        client.topic("watch.a").delete()
        client.topic("watch.b").delete()
        assert {one.topic for one in events if isinstance(one.item, TopicGone)} == {"watch.a", "watch.b"}


def test_errors_have_their_kind_their_code_and_their_facts(client: Client) -> None:
    with pytest.raises(NotFoundError) as missing:
        client.topic("absent").info()
    assert (missing.value.status, missing.value.code, missing.value.detail) == (
        404,
        "topic_not_found",
        {"topic": "absent"},
    )
    with pytest.raises(BadRequestError, match="topic name"):
        client.topic("no good").create()
    full = client.topic("full")
    full.create(cap_records=1, discard="reject")
    full.append(1)
    with pytest.raises(TopicFullError):
        full.append(2)
    with pytest.raises(TypeError, match="no setting 'ttl'"):
        full.create(ttl=5)
    with Client("http://127.0.0.1:1", retries=1) as nobody, pytest.raises(TransportError, match=r"127\.0\.0\.1:1"):
        nobody.health()
    with pytest.raises(NotFoundError, match="topic_not_found"):
        client.topic("../../healthz?").info()


def test_any_call_can_be_made_by_hand(client: Client) -> None:
    client.request("PUT", "/v0/topics/by-hand", json={"type": "queue"})
    answer = client.request("GET", "/v0/topics/by-hand", query={"touch": False})
    assert answer.status == 200
    assert answer.json()["type"] == "queue"
    with pytest.raises(ApiError, match="method_not_allowed"):
        client.request("OPTIONS", "/v0/topics/by-hand")
    assert client.metrics()["ready"] in (1, True)


def test_the_key_is_sent_and_shown_nowhere(tmp_path: Path) -> None:
    with serving(tmp_path, DRIFTQ_API_KEYS="sesame:rw") as server:
        server.wait_ready()
        with Client(f"http://{server.address}", "sesame") as client:
            assert client.topic("a").append(1).last_seq == 1
            assert "sesame" not in repr(client) + repr(client.topic("a")) + repr(vars(client))
        with Client(f"http://{server.address}", "wrong") as client, pytest.raises(UnauthorizedError) as caught:
            client.topic("a").info()
        assert "wrong" not in str(caught.value)


def test_the_asynchronous_client_does_the_same(url: str) -> None:
    async def use() -> None:
        async with AsyncClient(url) as client:
            topic = client.topic("async")
            await topic.create(durability="memory")
            written = await asyncio.gather(*(topic.append(n) for n in range(20)))
            assert sorted(one.last_seq for one in written) == list(range(1, 21))
            assert sorted([item.data async for item in topic.read() if isinstance(item, Record)]) == list(range(20))
            assert (await topic.to_arrow()).num_rows == 20
            async with topic.watch(19) as items:
                assert [(await anext(items)).seq] == [20]
            assert "async" in [row.topic async for row in client.topics()]
            with pytest.raises(NotFoundError):
                await client.topic("absent").info()

    asyncio.run(use())
