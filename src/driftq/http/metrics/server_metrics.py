"""`GET /v0/metrics` (http-v0 §17): the server's metrics, as Prometheus text or as JSON."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from driftq.engine.state.topic import Topic
from driftq.http.access import Scope
from driftq.http.metrics.prometheus_text import CONTENT_TYPE, Family, Sample, counter, encode, gauge, histogram
from driftq.http.metrics.server_vitals import vital_families, vitals_of
from driftq.http.reply import Reply, json_reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.model.tombstone import Reason
from driftq.model.topic_config import Durability
from driftq.model.units import NS_PER_US
from driftq.server import Server, ServerFigures
from driftq.storage.wal.group_commit import Shard
from driftq.storage.wal.writer_messages import SYNC_BOUNDS_US

TOPICS_MAX = 1000
"""Maximum number of topics with their own metrics."""


class MetricsEndpoint:
    """Serves the metrics as Prometheus text and as JSON."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def routes(self) -> list[Route]:
        """Return the route of this endpoint."""
        return [Route("GET", "/v0/metrics", self.get, Scope.READ, always=True)]

    def get(self, request: Request) -> Reply:
        """Return the metrics with status 200, in every state of the server."""
        figures = self._server.figures()
        if b"application/json" in (request.header(b"accept") or b""):
            return json_reply(200, _as_json(figures) | {"vitals": vitals_of(self._server, request.access)})
        return Reply(200, encode([*families(figures), *vital_families(self._server)]), CONTENT_TYPE)


def _as_json(figures: ServerFigures) -> dict[str, object]:
    wal = _Wal(figures.shards)
    classes = _classes(figures.topics)
    return {
        "topics": len(figures.topics),
        **{f"topics_{durability}": classes[durability] for durability in Durability},
        "routers": figures.routers,
        "records_live": figures.records,
        "bytes_live": figures.payload,
        "queue_topics": len(figures.queues),
        "queue_leases_in_flight": sum(queue.in_flight for queue in figures.queues.values()),
        "sse_connections": figures.streams,
        "watch_sessions": figures.watch_sessions,
        "ready": figures.ready,
        "replay_progress": figures.replay_progress,
        "uptime_ms": figures.uptime_ms,
        "clock_ahead_ms": figures.clock_ahead_ms,
        "repeated_commits": figures.repeated_commits,
        "wal": {
            "fsyncs": wal.syncs,
            "frames": wal.frames,
            "batches": wal.batches,
            "bytes_written": wal.bytes,
            "rotations": wal.rotations,
            "queue_depth": wal.depth,
            "queue_depth_peak": wal.peak,
            "submit_full_total": wal.submit_full,
            "read_only": figures.read_only,
            "stopped": figures.wal_stopped,
            "fsync_count": wal.syncs,
            "fsync_micros_total": wal.sync_us,
        },
    }


class _Wal:
    """Sums of the counters of all WAL shards."""

    def __init__(self, shards: Iterable[Shard]) -> None:
        shards = list(shards)
        counters = [shard.counters for shard in shards]
        self.frames = sum(one.frames for one in counters)
        self.batches = sum(one.batches for one in counters)
        self.bytes = sum(one.bytes for one in counters)
        self.rotations = sum(one.rotations for one in counters)
        self.submit_full = sum(shard.submit_full for shard in shards)
        # Copied first: the threads continue to count, and the parts of a histogram must match.
        self.sync_counts = [sum(column) for column in zip(*[list(one.sync_counts) for one in counters], strict=True)]
        self.sync_counts = self.sync_counts or [0] * (len(SYNC_BOUNDS_US) + 1)
        self.syncs = sum(self.sync_counts)
        self.sync_us = sum(one.sync_ns for one in counters) // NS_PER_US
        self.depth = sum(shard.depth for shard in shards)
        self.peak = max((shard.queue_peak for shard in shards), default=0)


def families(figures: ServerFigures) -> Iterator[Family]:
    """Yield the metrics that do not depend on which API was used."""
    yield gauge("driftq_topics", "Topics.", len(figures.topics))
    yield gauge("driftq_routers", "Routers.", figures.routers)
    yield gauge("driftq_records_live", "Live records of all topics.", figures.records)
    yield gauge("driftq_bytes_live", "Payload bytes of live records.", figures.payload)
    yield gauge("driftq_queue_topics", "Number of topics that are queues.", len(figures.queues))
    in_flight = sum(queue.in_flight for queue in figures.queues.values())
    yield gauge("driftq_queue_leases_in_flight", "Jobs under a lease.", in_flight)
    yield gauge("driftq_sse_connections", "Open event streams.", figures.streams)
    yield gauge("driftq_watch_sessions", "Open watch sessions.", figures.watch_sessions)
    yield gauge("driftq_ready", "Whether the server accepts requests.", figures.ready)
    yield gauge(
        "driftq_recovery_progress", "Part of the log that recovery has read, from 0 to 1.", figures.replay_progress
    )
    classes = _classes(figures.topics)
    yield Family(
        "driftq_topics_by_class",
        "gauge",
        "Topics by durability class.",
        [Sample(classes[durability], {"class": durability}) for durability in Durability],
    )
    yield gauge(
        "driftq_clock_ahead_ms",
        "How far new timestamps ($ts) are ahead of the wall clock, in ms.",
        figures.clock_ahead_ms,
    )
    yield counter("driftq_uptime_ms", "Milliseconds since the start.", figures.uptime_ms)
    yield from _holes(figures)
    yield from _topics(figures)
    yield Family(
        "driftq_cursor_lag",
        "gauge",
        "Lag of a named cursor, in seqs.",
        [Sample(lag, {"topic": topic, "cursor": cursor}) for topic, cursor, lag in figures.cursor_lags],
    )
    yield from _wal(_Wal(figures.shards))
    yield gauge("driftq_wal_read_only", "Whether writes are refused because the disk is full.", figures.read_only)
    yield gauge(
        "driftq_wal_stopped", "Whether the log has stopped: no writes until the server restarts.", figures.wal_stopped
    )
    yield Family(
        "driftq_writer_hung",
        "gauge",
        "Whether a writer process has not answered for 5 s.",
        [Sample(waited > 0, {"writer": name}) for name, waited in figures.writers_hung.items()],
    )
    yield gauge(
        "driftq_writer_replaced",
        "Whether threads write segments because the writer process ended.",
        figures.writer_replaced,
    )
    yield gauge("driftq_unsealed_bytes", "Bytes of records that are not in a segment file yet.", figures.unsealed)
    yield counter(
        "driftq_repeated_commits_total",
        "Commits of staged writes whose batch was published before.",
        figures.repeated_commits,
    )


def _classes(topics: Iterable[Topic]) -> Counter[Durability]:
    return Counter(topic.durability for topic in topics)


def _holes(figures: ServerFigures) -> Iterator[Family]:
    found = Counter(hole.reason for topic in figures.topics for hole in topic.holes.all)
    lost = sum(
        topic.in_flight.lost_from is not None and topic.durability is Durability.DISK for topic in figures.topics
    )
    found[Reason.CRASH] += lost
    samples = [
        Sample(found[reason], {"reason": reason}) for reason in (Reason.CORRUPTION, Reason.CRASH, Reason.SOURCE_TRIM)
    ]
    samples.append(Sample(figures.control_lost, {"reason": "control"}))
    yield gauge("driftq_lost_files", "Files of lost segments, kept in lost/.", figures.lost_files)
    yield Family("driftq_holes", "gauge", "Ranges of seqs that were lost, by reason.", samples)
    at_most = sum(hole.at_most for topic in figures.topics for hole in topic.holes.all) + lost
    yield Family("driftq_holes_at_most", "gauge", "Holes that may be empty, part of driftq_holes.", [Sample(at_most)])


def _topics(figures: ServerFigures) -> Iterator[Family]:
    shown = list(islice(sorted(figures.topics, key=lambda topic: topic.name), TOPICS_MAX))
    columns: list[tuple[str, str, Callable[[Topic], int]]] = [
        ("driftq_topic_head_seq", "Highest seq.", lambda topic: topic.head),
        ("driftq_topic_earliest_seq", "Seq of the first live record.", lambda topic: topic.earliest),
        ("driftq_topic_records_live", "Live records.", lambda topic: topic.count),
        ("driftq_topic_bytes_live", "Payload bytes of live records.", lambda topic: topic.payload),
    ]
    for name, text, figure in columns:
        yield Family(name, "gauge", text, [Sample(figure(topic), {"topic": topic.name}) for topic in shown])
    queues = [(topic.name, figures.queues[topic]) for topic in shown if topic in figures.queues]
    yield Family(
        "driftq_topic_queue_ready",
        "gauge",
        "Jobs that can be claimed.",
        [Sample(queue.ready, {"topic": name}) for name, queue in queues],
    )
    yield Family(
        "driftq_topic_queue_in_flight",
        "gauge",
        "Jobs under a lease.",
        [Sample(queue.in_flight, {"topic": name}) for name, queue in queues],
    )
    truncated = len(figures.topics) > TOPICS_MAX
    yield gauge("driftq_topic_metrics_truncated", f"Whether only {TOPICS_MAX} topics are shown.", truncated)


def _wal(wal: _Wal) -> Iterator[Family]:
    yield counter("driftq_wal_frames_total", "Frames written.", wal.frames)
    yield counter("driftq_wal_batches_total", "Write calls; each writes several frames.", wal.batches)
    yield counter("driftq_wal_fsyncs_total", "Syncs.", wal.syncs)
    yield counter("driftq_wal_bytes_written_total", "Bytes written.", wal.bytes)
    yield counter("driftq_wal_rotations_total", "WAL files that were full and replaced.", wal.rotations)
    yield counter("driftq_wal_submit_full_total", "Writes refused because the queue was full.", wal.submit_full)
    yield gauge("driftq_wal_queue_depth", "Writes in the queue.", wal.depth)
    yield gauge("driftq_wal_queue_depth_peak", "Highest number of writes in the queue so far.", wal.peak)
    yield histogram(
        "driftq_wal_fsync_latency_us",
        "Duration of syncs in microseconds.",
        SYNC_BOUNDS_US,
        wal.sync_counts,
        wal.sync_us,
    )
