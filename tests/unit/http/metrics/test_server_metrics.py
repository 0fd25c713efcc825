"""What is counted, and how it is written down."""

import pytest
from msgspec import json

from driftq.codec.write_body import make_rows
from driftq.config import Settings
from driftq.http.app import App
from driftq.http.metrics.prometheus_text import Family, Sample, encode, gauge, histogram
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.model.topic_config import Durability, TopicConfig
from driftq.server import Server
from driftq.storage.wal.writer_messages import SYNC_BOUNDS_US, WalCounters
from driftq.testing import ManualClock, ManualRuntime, OrderCheckingDisk, SimDisk


@pytest.fixture
def runtime() -> ManualRuntime:
    return ManualRuntime(ManualClock())


@pytest.fixture
def server(runtime: ManualRuntime) -> Server:
    server = Server(Settings(data_dir="/data"), OrderCheckingDisk(SimDisk()), runtime.clock, runtime)
    for durability in Durability:
        server.engine.put_topic(f"t-{durability}", TopicConfig(durability=durability))
    server.engine.append("t-fsync", make_rows([b'"xx"', b'"yy"', b'"zz"']))
    runtime.run_until_idle()
    server.engine.delete_records("t-fsync", before_seq=2)
    runtime.run_until_idle()
    return server


def ask(server: Server, *headers: tuple[bytes, bytes]) -> Reply:
    answer = App(server).handle(Request("GET", "/v0/metrics", headers=list(headers)))
    assert isinstance(answer, Reply)
    return answer


def lines(server: Server) -> list[str]:
    return ask(server).body.decode().splitlines()


def test_the_page_is_prometheus_text_with_a_type_for_every_name(server: Server) -> None:
    assert ask(server).content_type.startswith(b"text/plain; version=0.0.4")
    page = lines(server)
    typed = {line.split()[2] for line in page if line.startswith("# TYPE")}
    named = {line.partition("{")[0].split()[0] for line in page if not line.startswith("#")}
    parts = {f"driftq_wal_fsync_latency_us{suffix}" for suffix in ("_bucket", "_sum", "_count")}
    assert named - typed == parts


def test_topics_are_counted_as_a_whole_by_class_and_one_by_one(server: Server) -> None:
    page = lines(server)
    assert "driftq_topics 4" in page
    assert [line for line in page if line.startswith("driftq_topics_by_class")] == [
        f'driftq_topics_by_class{{class="{durability}"}} 1' for durability in Durability
    ]
    assert 'driftq_topic_head_seq{topic="t-fsync"} 3' in page
    assert 'driftq_topic_earliest_seq{topic="t-fsync"} 2' in page
    assert 'driftq_topic_records_live{topic="t-fsync"} 2' in page
    assert 'driftq_topic_bytes_live{topic="t-fsync"} 8' in page
    assert "driftq_bytes_live 8" in page


def test_the_count_of_the_sync_histogram_is_the_count_of_syncs(server: Server) -> None:
    page = dict(line.rsplit(" ", 1) for line in lines(server) if not line.startswith("#"))
    assert int(page["driftq_wal_fsyncs_total"]) > 0
    assert page["driftq_wal_fsync_latency_us_count"] == page["driftq_wal_fsyncs_total"]
    assert page['driftq_wal_fsync_latency_us_bucket{le="+Inf"}'] == page["driftq_wal_fsyncs_total"]


def test_who_asks_for_json_gets_the_same_figures(server: Server) -> None:
    reply = ask(server, (b"accept", b"text/html, application/json;q=0.9"))
    assert reply.content_type == b"application/json"
    body = json.decode(reply.body)
    assert (body["topics"], body["topics_fsync"], body["records_live"], body["bytes_live"]) == (4, 1, 2, 8)
    assert body["wal"]["fsync_count"] == body["wal"]["fsyncs"] > 0
    assert body["ready"] is True


def test_metrics_are_there_while_the_server_is_going(server: Server) -> None:
    server.close()
    reply = ask(server)
    assert reply.status == 200
    assert b"driftq_ready 0\n" in reply.body


def test_a_sync_is_counted_at_the_first_bound_it_does_not_exceed() -> None:
    counters = WalCounters()
    for took_us in (50, 51, 100_001):
        counters.note_sync(took_us * 1000)
    assert counters.sync_counts == [1, 1] + [0] * (len(SYNC_BOUNDS_US) - 2) + [1]
    assert (counters.syncs, counters.sync_ns) == (3, 100_102_000)


def test_labels_are_escaped_and_histograms_add_up() -> None:
    page = encode(
        [
            Family("a", "gauge", "An a.", [Sample(1.5, {"x": 'q"\\\n'})]),
            histogram("h", "An h.", (1, 10), (2, 0, 1), 33),
            gauge("b", "A b.", True),
        ]
    )
    assert page.decode().splitlines() == [
        "# HELP a An a.",
        "# TYPE a gauge",
        'a{x="q\\"\\\\\\n"} 1.5',
        "# HELP h An h.",
        "# TYPE h histogram",
        'h_bucket{le="1"} 2',
        'h_bucket{le="10"} 2',
        'h_bucket{le="+Inf"} 3',
        "h_sum 33",
        "h_count 3",
        "# HELP b A b.",
        "# TYPE b gauge",
        "b 1",
    ]
