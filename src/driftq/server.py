"""The composition root: the only module that knows every part of a running server. It knows nothing of HTTP.

    directories → engine (lock, recovery) → serving → closing

A refused start raises `StartError`; a directory that another server has open is not changed.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from msgspec import Struct, structs

from driftq import __version__
from driftq.config import Settings
from driftq.engine.engine import Engine
from driftq.engine.engine_time import TOLD_MS
from driftq.engine.load.admission import Admission
from driftq.engine.state.topic import Topic
from driftq.errors import ShuttingDownError, StartError, WalStoppedError
from driftq.features.backup.backups import Backups
from driftq.features.broker.broker import Broker
from driftq.features.broker.idempotency.registry import IdempotencyRegistry
from driftq.features.broker.producer.router_hook import make_hook
from driftq.features.broker.redrive import Redriver
from driftq.features.broker.redrive_topics import BrokerRedriveTopics
from driftq.features.broker.run_index import RunIndex
from driftq.features.cursors import NamedCursors
from driftq.features.queue.lease_log import LeaseLog
from driftq.features.queue.queues import Queues
from driftq.features.router.routers import Routers
from driftq.features.staging.staging import Staging
from driftq.features.watch.watch import Watch
from driftq.model.tombstone import Reason
from driftq.model.topic_config import Durability
from driftq.model.units import NS_PER_MS
from driftq.model.v0_answers import ClockAhead, Health, Holes, QueueCounts, Readiness
from driftq.storage.layout import Layout, make_directory
from driftq.storage.server_id import ColdMark, adopt_cold_tier, settle_server_id
from driftq.storage.wal.group_commit import Shard
from driftq.system.clock import Clock
from driftq.system.disk import Disk
from driftq.system.entropy import Entropy, SystemEntropy
from driftq.system.machine import UNKNOWN_BOOT
from driftq.system.runtime import Pending, Runtime

_DRAIN_MS = 2000
"""A stop waits this many ms for routers. Connections and the last checkpoint need the rest of its ten seconds."""
_RETRY_MS = 1000
_LAGS_MAX = 10_000
"""The metrics show the lag of at most this many cursors."""


class QueueFigures(NamedTuple):
    """Ready and leased jobs of a queue."""

    ready: int
    in_flight: int


class Unconfirmed(NamedTuple):
    """Acked records that are not known to be on stable storage, by class. Those of class `fsync` always are."""

    disk: int
    memory: int


class ServerFigures(Struct, frozen=True):
    """The figures of the server at one moment, for the metrics."""

    uptime_ms: int
    ready: bool
    replay_progress: float
    topics: list[Topic]
    records: int
    payload: int
    control_lost: int
    shards: Sequence[Shard]
    wal_stopped: bool = False
    lost_files: int = 0
    """Files of segments that were given up."""
    writers_hung: dict[str, int] = {}
    """For how many milliseconds each kind of writer has hung."""
    writer_replaced: bool = False
    unsealed: int = 0
    repeated_commits: int = 0
    """Commits of staged writes since the start whose batch was published before."""
    clock_ahead_ms: int = 0
    read_only: bool = False
    """Whether records are refused because there is no room for them."""
    routers: int = 0
    queues: dict[Topic, QueueFigures] = {}
    streams: int = 0
    watch_sessions: int = 0
    cursor_lags: list[tuple[str, str, int]] = []
    """Topic, cursor, and lag of the cursor."""


class Server:
    """An engine with all features, on a real or simulated system, and the health and figures of the whole."""

    def __init__(
        self,
        settings: Settings,
        disk: Disk,
        clock: Clock,
        runtime: Runtime,
        *,
        entropy: Entropy | None = None,
        boot_id: bytes = UNKNOWN_BOOT,
        pid: int = 0,
        recover: bool = True,
        missing_is_lost: bool = False,
    ) -> None:
        """Build all parts. `missing_is_lost` is for a repair, see `Engine`."""
        self.settings = settings
        self.clock = clock
        self._began_ns = clock.monotonic_ns()
        self._closing: Pending[bool] | None = None
        self.on_close: list[Callable[[], None]] = []
        """Called once, when the server begins to close."""
        self._finished = False
        _make_directories(disk, settings)
        self.runtime = runtime
        self.admission = Admission(settings.limits)
        self.replay_progress = 0.0
        self.recovery_ms = 0
        """How long recovery took, in milliseconds; 0 until it has finished."""
        self.cursors = NamedCursors()
        self.staging = Staging(settings.stage_ttl_ms)
        self.hot_root = os.path.abspath(settings.data_dir)
        self.cold_root = None if settings.cold_dir is None else os.path.abspath(settings.cold_dir)
        self.real_roots = [os.path.realpath(root) for root in (self.hot_root, self.cold_root) if root is not None]
        """The directories of the server without symbolic links, as they were at its start."""
        self.server_id = ""
        """The id of the server; "" until it has recovered."""
        self._layout = Layout(disk, settings.data_dir, settings.cold_dir)
        self.cold_mark = ColdMark(runtime, self._layout)
        self.entropy = entropy or SystemEntropy()
        leases = LeaseLog()
        self.routers = Routers(settings.limits, runtime)
        self._make_broker()
        self.engine = Engine(
            disk,
            clock,
            runtime,
            settings,
            (leases, self.cursors, self.staging, self.routers, self.registry, self.runs, self.broker),
            self.routers,
            pid=pid,
            recover=False,
            missing_is_lost=missing_is_lost,
            boot_id=boot_id,
            entropy=self.entropy,
        )
        self.backups = Backups(self._layout, self.engine, runtime, clock, self.entropy)
        self.watch = Watch(self.engine, runtime, clock, self.entropy)
        self.queues = Queues(self.engine, runtime, self.entropy, self.watch.turns, leases)
        if recover:
            for _ in self.recover():
                pass

    def _make_broker(self) -> None:
        """Make the broker and what it works with: idempotency keys, the router hook, the index of runs."""
        settings = self.settings.broker
        self.registry = IdempotencyRegistry(settings)
        self.hook = make_hook(settings, self.runtime, self.clock)
        self.broker = Broker(settings, self.registry, self.hook)
        self.runs = RunIndex(settings.run_index_entries)
        self.broker.broker_state.listeners.append(self.runs.heard)
        self.broker.broker_state.enders.append(self.runs.ended)

    def recover(self) -> Iterator[None]:
        """Read the log in small steps. The server can be used after the last one. Raises StartError.

        For callers that made the server with `recover=False`.
        """
        began_ns = self.clock.monotonic_ns()
        for progress in self.engine.recover():
            self.replay_progress = progress
            yield
        self.recovery_ms = (self.clock.monotonic_ns() - began_ns) // NS_PER_MS
        self.routers.bind(self.engine)
        self.queues.open()
        self.cursors.bind(self.engine)
        self.registry.bind(self.engine, self.broker)
        try:
            self.broker.open(self.engine, self.runtime)
            self.runs.opened()
            letters = BrokerRedriveTopics(self.engine, self.broker.broker_state, self.broker.producer)
            self.redriver = Redriver(
                letters, self.runtime, self.entropy, self.engine.time.running, self.engine.time.wall
            )
            self.server_id = settle_server_id(self._layout, self.entropy)
            adopt_cold_tier(self._layout)
            self.staging.open(self.engine, self.runtime, self._layout)
        except OSError as error:
            raise StartError(f"{self.settings.data_dir} cannot be used: {error}") from error
        self.backups.look_for_last(self.settings.backup_dir)

    def health(self) -> Health:
        """Return an answer that is independent of the state of the server."""
        return Health("ok", __version__, (self.clock.monotonic_ns() - self._began_ns) // NS_PER_MS)

    def check_ready(self) -> None:
        """Raise ShuttingDownError if the server is closing."""
        if self._closing is not None:
            raise ShuttingDownError("the server is shutting down", retry_after_ms=_RETRY_MS)

    def readiness(self) -> Readiness:
        """Return the state of a server that accepts requests. Raises ShuttingDownError and WalStoppedError."""
        self.check_ready()
        stopped = self.engine.writers.stopped
        if stopped is not None:
            message = f"the log is stopped: {stopped}; writes are refused until the server restarts, reads work"
            raise WalStoppedError(message, retry_after_ms=_RETRY_MS)
        ready = Readiness("ready", True, len(list(self.engine.catalog.visible())), self.holes())
        refusal, writers = self.engine.refusal, self.engine.writers.states()
        if refusal is not None:
            ready = structs.replace(ready, writable=False, reason=refusal.code, message=refusal.message)
        ahead_ms = self.engine.time.ahead_ms
        if ahead_ms > TOLD_MS:
            ready = structs.replace(ready, clock=ClockAhead(ahead_ms))
        return ready if writers is None else structs.replace(ready, writers=writers)

    def holes(self) -> Holes | None:
        """Return how many ranges of seqs were lost that no client deleted, by reason; None if there are none.

        Records whose write failed after their ack count as a range that may be lost: a crash before the next checkpoint
        would lose them, and until then they can be read.
        """
        topics = list(self.engine.catalog.visible())
        reasons = [hole.reason for topic in topics for hole in topic.holes.all]
        lost = sum(topic.in_flight.lost_from is not None and topic.durability is Durability.DISK for topic in topics)
        holes = Holes(
            corruption=reasons.count(Reason.CORRUPTION),
            crash=reasons.count(Reason.CRASH) + lost,
            control=self.engine.recovered.control_lost,
            at_most=sum(hole.at_most for topic in topics for hole in topic.holes.all) + lost,
        )
        return None if holes == Holes(0, 0, 0) else holes

    def unconfirmed(self) -> Unconfirmed:
        """Count the records that were acked and are not known to be on stable storage."""
        counts = {Durability.DISK: 0, Durability.MEMORY: 0}
        for topic in self.engine.catalog.visible():
            if topic.durability in counts:
                counts[topic.durability] += max(0, topic.head - self.engine.synced_seq(topic))
        return Unconfirmed(counts[Durability.DISK], counts[Durability.MEMORY])

    def figures(self) -> ServerFigures:
        """Return the figures for the metrics, after applying retention."""
        engine = self.engine
        topics = list(engine.catalog.visible())
        now = engine.time.now()
        for topic in topics:
            if not topic.late:
                topic.expire(now)
        return ServerFigures(
            uptime_ms=self.health().uptime_ms,
            ready=self._closing is None and engine.writers.stopped is None,
            replay_progress=self.replay_progress,
            topics=topics,
            records=engine.blocks.usage.records,
            payload=engine.blocks.usage.payload,
            control_lost=engine.recovered.control_lost,
            shards=engine.shards.all,
            wal_stopped=engine.writers.stopped is not None,
            lost_files=engine.segment_files.lost.count(),
            writers_hung=engine.writers.hung_ms,
            writer_replaced=engine.writers.replaced,
            unsealed=engine.unsealed.size,
            repeated_commits=self.staging.repeated,
            clock_ahead_ms=engine.time.ahead_ms,
            read_only=engine.change_log.space.short or any(shard.read_only for shard in engine.shards.all),
            queues={
                topic: QueueFigures(counters.ready, counters.in_flight)
                for topic in topics
                if topic.config.type == "queue"
                for counters in (self.queues.counters(topic),)
            },
            routers=len(self.routers),
            streams=self.admission.streams,
            watch_sessions=len(self.watch.sessions),
            cursor_lags=list(islice(self.cursors.lags(topics), _LAGS_MAX)),
        )

    def queue_counts(self, topic: Topic) -> QueueCounts:
        """Return the number of a queue's jobs in each state, after applying retention."""
        return QueueCounts(*self.queues.counters(topic))

    def close(self) -> Pending[bool]:
        """Refuse new work, copy what is due, take a last checkpoint. The result is whether it was taken."""
        if self._closing is None:
            self._closing = Pending()
            for ending in self.on_close:
                ending()
            self.backups.close()
            self.broker.close()
            if self.hook is not None:
                self.hook.close()
            given_up = self.runtime.later(_DRAIN_MS, self._finish)
            drained = self.routers.drain()
            drained.then(lambda _: given_up.cancel())
            drained.then(lambda _: self._finish())
        return self._closing

    def _finish(self) -> None:
        """Close the engine. Copies that are missing are made after the next start, if their source keeps data."""
        if self._finished:
            return
        self._finished = True
        self.routers.close()
        done = self.engine.close()
        done.then(lambda _: self.staging.close())
        done.then(self._closed)

    def _closed(self, done: Pending[bool]) -> None:
        assert self._closing is not None
        if done.error is None:
            self._closing.resolve(done.result())
        else:
            self._closing.fail(done.error)


def _make_directories(disk: Disk, settings: Settings) -> None:
    """Make the data directory. The cold one is made after recovery, which has to see whether it is missing."""
    if settings.cold_dir is not None:
        # The first call on the cold directory goes through `disk`: if it hangs, the start is refused in time.
        _use(settings.cold_dir, disk.names)
        if os.path.realpath(settings.cold_dir) == os.path.realpath(settings.data_dir):
            raise StartError(f"{settings.cold_dir} is the data directory; the cold directory must be another one")
    _use(settings.data_dir, partial(make_directory, disk))
    _use(settings.data_dir, disk.names)


def _use(path: str, work: Callable[[str], object]) -> None:
    """Call `work` with a directory. Raises StartError if it cannot be used."""
    try:
        work(path)
    except NotADirectoryError:
        raise StartError(f"{path} cannot be used: it is not a directory") from None
    except OSError as error:
        raise StartError(f"{path} cannot be used: {error.strerror}") from error
