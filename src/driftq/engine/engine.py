"""`Engine`: creates the parts, opens and closes them, and offers the operations on topics.

Everything runs on one event loop. A call either raises at once and has changed nothing, or returns a `Pending` that
settles at the commit point of its durability class. Reads never wait: if a block has to be fetched, they return a
`Fetch` for the caller to wait for.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from driftq.config import Settings
from driftq.engine.block_fetch import Fetch, Fetching
from driftq.engine.engine_time import EngineTime
from driftq.engine.files.checkpoint import Checkpointer
from driftq.engine.files.checkpoint_health import CheckpointRecord
from driftq.engine.files.index_rebuild import Mending
from driftq.engine.files.relocation import Relocation
from driftq.engine.files.segment_files import SegmentFiles, SegmentPolicy
from driftq.engine.key_expiry import KeyWindows
from driftq.engine.load.disk_forecast import SpaceWatch
from driftq.engine.load.disk_space import DiskSpace
from driftq.engine.load.pressure import Level, Pressure
from driftq.engine.load.quota import Quota
from driftq.engine.load.unsealed_limit import UnsealedLimit
from driftq.engine.read.seq_lookup import rows_of
from driftq.engine.read.tag_lookup import Match, TagIndexes
from driftq.engine.read.time_lookup import cursor_at
from driftq.engine.read.topic_page import Page, PageQuery, Slice, read_page
from driftq.engine.read.waiting_readers import Wakeups
from driftq.engine.recovery.deferred_load import Loading
from driftq.engine.recovery.derived_copies import Deriver, TopicCopier
from driftq.engine.recovery.recovery import Recovery
from driftq.engine.recovery.recovery_report import ReplayReport
from driftq.engine.state.block_cache import Blocks
from driftq.engine.state.catalog import Catalog
from driftq.engine.state.durable_feature import DurableState
from driftq.engine.state.topic import Topic
from driftq.engine.upkeep import Upkeep
from driftq.engine.write.appender import Appender, AppendResult, PendingWrite, WriteCaller
from driftq.engine.write.catalog_writer import CatalogWriter
from driftq.engine.write.change_log import ChangeLog, forward
from driftq.engine.write.commit_point import CommitPoint
from driftq.engine.write.copier import Copier
from driftq.engine.write.deleter import Deleted, Deleter
from driftq.engine.write.floor_log import FloorLog
from driftq.engine.write.publisher import Publisher
from driftq.engine.write.sync_waiters import SyncWakeups
from driftq.engine.writer_watch import Writers
from driftq.errors import (
    DataDirLockedError,
    DiskFullError,
    DriftQError,
    SegmentUnavailableError,
    ShardReadOnlyError,
    ShuttingDownError,
    StartError,
    TopicNotFoundError,
)
from driftq.model.limits import KEY_BYTES_MAX
from driftq.model.names import check_stored_name
from driftq.model.topic_config import Durability, TopicConfig, TopicPatch
from driftq.storage.blocks.rows import Row, Rows
from driftq.storage.layout import Layout
from driftq.storage.segments.cold_store import ColdStore
from driftq.storage.segments.hot_store import SegmentStore
from driftq.storage.segments.segment_process import SegmentProcess
from driftq.storage.space_reserve import SpaceReserve
from driftq.storage.wal.shards import Shards
from driftq.system.clock import Clock
from driftq.system.disk import Disk
from driftq.system.entropy import Entropy
from driftq.system.file_thread import FileThread
from driftq.system.lock import Lock, LockHeldError
from driftq.system.machine import UNKNOWN_BOOT
from driftq.system.runtime import Pending, Runtime, run

# long: the one place that knows every part of the engine

T = TypeVar("T")

_FILES_PATIENCE_NS = 2_000_000_000
"""How long a stop waits for file work. The last checkpoint contains what is not in segment files by then."""
_SHRINK_MS = 50
"""How long the logs have to give space back for the last checkpoint, in ms."""
_TAG_CACHE_SHARE = 8
"""One part in this many of the cache's bytes is for tag indexes, the rest for blocks."""


class Engine:
    """The topics of one data directory."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        runtime: Runtime,
        settings: Settings,
        features: tuple[DurableState, ...] = (),
        deriver: Deriver | None = None,
        *,
        pid: int = 0,
        recover: bool = True,
        missing_is_lost: bool = False,
        boot_id: bytes = UNKNOWN_BOOT,
        entropy: Entropy | None = None,
    ) -> None:
        """`missing_is_lost` is for a repair: a segment without a file becomes a hole instead of refusing the start."""
        self.settings = settings
        self._missing_is_lost = missing_is_lost
        self._clock = clock
        self._runtime = runtime
        self._boot_id = boot_id
        self._entropy = entropy
        self._layout = Layout(disk, settings.data_dir, settings.cold_dir)
        self._lock = self._take_lock(disk, pid)
        with self._giving_up_the_lock():
            self._layout.prepare()
            self._make_parts(features, deriver)
        if recover:
            for _ in self.recover():
                pass

    def recover(self) -> Iterator[float]:
        """Restore the state from disk step by step, then begin to accept writes. Yields the progress, up to 1.

        For callers that created the engine with `recover=False`, to do other work between the steps.
        """
        with self._giving_up_the_lock():
            yield from self._recovery.steps()
            if self.settings.cold_dir is not None:
                self._prepare_cold()
            self._begin()

    @contextmanager
    def _giving_up_the_lock(self) -> Iterator[None]:
        """Release the lock of the data directory if a start fails."""
        try:
            yield
        except (DriftQError, OSError) as error:
            self._lock.release()
            if isinstance(error, OSError | SegmentUnavailableError):
                raise StartError(f"{self.settings.data_dir} cannot be used: {error}") from error
            raise

    def _take_lock(self, disk: Disk, pid: int) -> Lock:
        try:
            return disk.lock(self._layout.lock_path, b"pid=%d\n" % pid)
        except LockHeldError:
            raise DataDirLockedError(
                f"{self.settings.data_dir} is in use by a server or a repair; stop it or choose another data directory"
            ) from None
        except OSError as error:
            raise StartError(f"{self.settings.data_dir} cannot be used: {error}") from error

    def _prepare_cold(self) -> None:
        try:
            self._layout.prepare_cold()
        except OSError as error:
            raise StartError(f"{self.settings.cold_dir} cannot be used: {error.strerror}") from error

    def _make_parts(self, features: tuple[DurableState, ...], deriver: Deriver | None) -> None:
        """Create the parts that recovery fills."""
        settings, runtime, layout = self.settings, self._runtime, self._layout
        self.time = EngineTime(self._clock)
        store = SegmentStore(layout)
        cold = ColdStore(layout) if settings.cold_dir is not None else None
        tag_bytes = settings.cache_bytes // _TAG_CACHE_SHARE
        self.blocks = Blocks(store, cold, settings.cache_bytes - tag_bytes)
        self.indexes = TagIndexes(store, cold, tag_bytes)
        self.catalog = Catalog(self.blocks, settings.limits.topics_max, self.time.timeline)
        self.catalog.features.extend(features)
        self._writes = FileThread(runtime, "driftq-blocks")
        self._thread = FileThread(runtime, "driftq-files")
        policy = SegmentPolicy(settings.segment_max_events, settings.segment_max_bytes, settings.segment_max_age_ms)
        writer_process = runtime.writer_process()
        self._writer_process = (
            None if writer_process is None else SegmentProcess(writer_process, self._lock, layout.data)
        )
        self.segment_files = SegmentFiles(
            layout, self._writes, self._thread, self._writer_process, self._clock, self.blocks, self.indexes, policy
        )
        if deriver is not None:
            deriver.attach(self.catalog, self.segment_files)
        self._recovery = Recovery(
            layout,
            self.catalog,
            store,
            cold,
            self.segment_files,
            self.indexes,
            self.time,
            deriver,
            missing_is_lost=self._missing_is_lost,
            boot_id=self._boot_id,
        )
        self.recovered: ReplayReport = self._recovery.report

    def _begin(self) -> None:
        """Create the parts that accept writes, after recovery, in the order of http-v0 §19.7."""
        settings, runtime, layout, clock = self.settings, self._runtime, self._layout, self._clock
        self.shards = Shards(
            layout,
            runtime,
            clock,
            count=settings.wal_shards,
            file_bytes=settings.wal_file_bytes,
            lock=self._lock,
            boot_id=self._boot_id,
            entropy=self._entropy,
            least=self._recovery.log_from,
            keeps_reserve=settings.disk_reserve_bytes > 0,
        )
        self._watch_writers()
        self.change_log = ChangeLog(runtime, self.time, self.shards, self.unsealed, self.segment_files.space)
        self.pressure = Pressure(runtime, clock, self.shards)
        self.wakeups = Wakeups(runtime)
        self.synced = SyncWakeups(runtime, self.catalog, self.shards)
        self.topic_copiers: list[TopicCopier] = []
        self.listeners: list[Callable[[Topic], None]] = [self.segment_files.changed, self._wake]
        """Called when a topic has new records."""
        self.quota = Quota(self.catalog, self.time, settings.limits.total_bytes_max)
        commit_point = self._commit_point = CommitPoint(self.change_log)
        commit_point.losses.on_covered = self._covered
        self._appender = Appender(self.change_log, commit_point, self.publish, self.quota)
        self.publisher = Publisher(runtime, self.change_log, commit_point, self.publish, self.synced.after)
        self.copier = Copier(self.change_log, commit_point, self._appender, self.quota, self.publish)
        self.writer = CatalogWriter(self.catalog, self.change_log, self._gone)
        self.catalog.watch_floors(FloorLog(self.change_log, runtime).moved)
        self.key_windows = KeyWindows(self.catalog)
        self._deleter = Deleter(self.change_log, self.indexes)
        self._make_upkeep(layout, clock)
        self.loading = Loading(runtime, self._recovery.late, self.segment_files.changed, self._loaded)
        self.catalog.load_late = self.loading.finish
        self.catalog.wait_for_late = self.loading.wait_for_all
        self._closing: Pending[bool] | None = None
        for topic in self.catalog.visible():
            self.segment_files.deleted_rows(topic)
        self._remove_deleted()
        Mending(self.segment_files, self.blocks.store, self._recovery.unsure).go_on()
        self.upkeep.start()
        self.pressure.start()
        self.loading.start()

    def _make_upkeep(self, layout: Layout, clock: Clock) -> None:
        """Create the parts for periodic work, mainly checkpoints."""
        settings, runtime = self.settings, self._runtime
        space_reserve = SpaceReserve(layout, settings.disk_reserve_bytes)
        self.checkpointer = Checkpointer(
            layout,
            self.shards,
            self.catalog,
            self.segment_files,
            self._thread,
            self.blocks,
            self.time,
            self._commit_point.losses,
            self.change_log.space,
            space_reserve,
            self.recovered.snapshot,
            CheckpointRecord(self._clock),
        )
        relocation = (
            None
            if self.blocks.cold is None
            else Relocation(settings, self._thread, self.blocks, self.catalog, self.segment_files)
        )
        self.space = SpaceWatch(clock, layout.data)
        self.fetching = Fetching(runtime, self.blocks, self.change_log, self.segment_files.changed)
        self.upkeep = Upkeep(
            runtime,
            settings,
            self.catalog,
            self.change_log,
            self._commit_point,
            self.segment_files,
            self.checkpointer,
            relocation,
            self.space,
            self.fetching,
            self._wake_all,
            self.key_windows,
            space_reserve,
        )
        self.relocation = relocation

    def _watch_writers(self) -> None:
        """Watch for a log or segment writer that stops or hangs, and limit the data that waits for it."""
        settings = self.settings
        self.unsealed = UnsealedLimit(
            self.blocks, settings.cache_bytes, settings.checkpoint_wal_bytes, lambda: self.checkpointer.wal_bytes
        )
        self.writers = Writers(
            self._runtime,
            self._clock,
            self.shards,
            self._writer_process,
            self._writes,
            self.unsealed,
            grace_ms=settings.wal_stop_grace_ms,
            limit_ms=settings.writer_hang_limit_ms,
        )

    def _wake_all(self) -> None:
        """Wake all waiting readers to check the time again, because the machine was suspended and timers are late."""
        for name in self.wakeups.names():
            self.wakeups.wake(name)

    # Writing

    def append(
        self,
        name: str,
        rows: Rows | Row,
        *,
        key: str | None = None,
        create: bool | None = None,
        config: TopicConfig | None = None,
        yields: bool = False,
    ) -> Pending[AppendResult]:
        """Write records. Creates a missing topic unless `create`, or the config's `auto_create`, is false.

        `yields` allows refusing the write under pressure, unless it is a repeat, which costs nothing.
        """
        if self._closing is not None:
            self.check_open()
        raw_key = None if key is None else key.encode()
        assert raw_key is None or len(raw_key) <= KEY_BYTES_MAX
        topic = self.catalog.holder(name)
        created = False
        if topic is not None and topic.in_flight.held and (deleting := self.writer.deleting(topic)) is not None:
            # The write comes after the deletion, and so goes to a new topic with this name.
            answer: Pending[AppendResult] = Pending()
            deleting.then(
                lambda _: forward(
                    lambda: self.append(name, rows, key=key, create=create, config=config, yields=yields), answer
                )
            )
            return answer
        if topic is None:
            check_stored_name(name)
            inline = (config or TopicConfig()).resolved(name)
            if create is False or (create is None and not inline.auto_create):
                raise TopicNotFoundError(name)
            if yields:
                self.pressure.check_write()
            topic = self._create_for(name, inline, rows)
            created = True
        elif yields and (raw_key is None or not self._appender.knows(topic, raw_key)):
            self.pressure.check_write()
        return self._appender.append(topic, rows, raw_key, created=created)

    def would_create(self, name: str) -> bool:
        """Whether a write to this name would create its topic: there is none, or its deletion is in flight."""
        topic = self.catalog.by_name.get(name)
        return topic is None or self.writer.deleting(topic) is not None

    def takes(self, name: str) -> bool:
        """Whether `take` would accept a write now, apart from the limits of its topic."""
        topic = self.catalog.by_name.get(name)
        calm = self.pressure.level is not Level.CRITICAL
        return self._closing is None and topic is not None and not topic.in_flight.held and not topic.late and calm

    def take(self, name: str, rows: Rows | Row, key: bytes | None, caller: WriteCaller) -> bool:
        """Accept a write to an existing topic if nothing delays it, and return True; else return False, or raise.

        The caller gets the result. Returns False for a key that was used before: `append` returns the earlier result.
        """
        topic = self.catalog.by_name.get(name)
        if self._closing is not None or topic is None or topic.in_flight.held or topic.late:
            return False
        if key is not None and self._appender.knows(topic, key):
            return False
        self.pressure.check_write()
        self._appender.take(topic, PendingWrite(rows=rows, key=key, caller=caller))
        return True

    def _create_for(self, name: str, config: TopicConfig, rows: Rows | Row) -> Topic:
        """Create a topic for a write, after a check that the topic can hold it: a refused write creates no topic."""
        self._appender.check_new(config, rows)
        created = self.writer.create(name, config, for_write=True)
        topic = self.catalog.by_name[name]
        created.then(lambda _: self._commit_point.reservations.idle.watch(topic, self.time.now()))
        return topic

    def put_topic(self, name: str, config: TopicConfig) -> Pending[bool]:
        """Create a topic or replace its config; the result is whether it was created."""
        self.check_open()
        if name not in self.catalog.by_name:
            return self._tell_waiters(name, self.writer.put(name, config))
        return self._tell_waiters(name, _again_if_full(self.change_log.space, lambda: self.writer.put(name, config)))

    def ensure_topic(self, name: str, config: TopicConfig) -> Pending[bool]:
        """Create a topic unless it exists; the result is whether it was created."""
        self.check_open()
        return self.writer.ensure(name, config)

    def patch_topic(self, name: str, patch: TopicPatch) -> Pending[TopicConfig]:
        """Change some fields of a topic's config; the result is the whole config."""
        self.check_open()
        return self._tell_waiters(name, _again_if_full(self.change_log.space, lambda: self.writer.patch(name, patch)))

    def _tell_waiters(self, name: str, changed: Pending[T]) -> Pending[T]:
        """Wake those who wait for a topic when its config changes, because it may have more room then."""
        changed.then(lambda _: self.wakeups.wake(name))
        return changed

    def delete_topic(self, name: str, *, if_empty: bool = False) -> Pending[bool]:
        """Delete a topic; the result is whether it existed."""
        self.check_open()
        deleted = _again_if_full(self.change_log.space, lambda: self.writer.delete(name, if_empty=if_empty))
        deleted.then(lambda _: self._remove_deleted())
        deleted.then(lambda _: self.wakeups.wake(name))
        deleted.then(lambda _: self.synced.wake(name))
        return deleted

    def delete_records(
        self,
        name: str,
        *,
        before_seq: int | None = None,
        match: Match | None = None,
        seqs: list[int] | None = None,
        sync: bool | None = None,
    ) -> Pending[Deleted]:
        """Delete records that exist now; `sync` overrides whether the delete waits for a sync."""
        self.check_open()
        topic = self.catalog.get(name)
        deleted = self._deleter.delete(topic, before_seq=before_seq, match=match, seqs=seqs, sync=sync)
        deleted.then(lambda _: self.segment_files.deleted_rows(topic))
        deleted.then(lambda _: self.wakeups.wake(name))
        return deleted

    def log(
        self,
        topic: Topic,
        kind: int,
        body: bytes,
        feature: DurableState,
        *,
        sync: bool = True,
        in_order: bool = True,
    ) -> Pending[None]:
        """Log a frame of a feature's own kind, and apply it at its commit point. See `ChangeLog.control`."""
        self.check_open()

        def apply(op: int, ts: int) -> None:
            topic.op = op
            topic.changed = True
            feature.apply(kind, topic, ts, body)

        return self.change_log.control(topic, kind, body, apply, sync=sync, in_order=in_order)

    # Reading

    def topic(self, name: str) -> Topic:
        """Return the state of a topic after applying retention. Raises TopicNotFoundError."""
        topic = self.catalog.get(name)
        topic.expire(self.time.now())
        return topic

    def bring(self, topic: Topic) -> Pending[None] | None:
        """Make routers copy into a topic what is due; returns None when there is nothing to wait for."""
        waiting = [due for topic_copier in self.topic_copiers if (due := topic_copier.bring(topic)) is not None]
        return run(_all_of(waiting)) if waiting else None

    async def fresh(self, name: str) -> Topic:
        """Return the state of a topic after every router copy that is due. Raises TopicNotFoundError."""
        waiting = self.bring(self.catalog.get(name))
        if waiting is not None:
            await waiting
        return self.topic(name)

    def touch(self, topic: Topic) -> None:
        """Note that a topic is read now; this raises its priority."""
        topic.consumed_at = self.time.running()

    async def read(self, name: str, query: PageQuery) -> Page:
        """Return the page after a cursor, and wait for missing blocks."""
        found = self.diff(name, query)
        while isinstance(found, Fetch):
            await found
            found = self.diff(name, query)
        return found

    def synced_seq(self, topic: Topic) -> int:
        """Return the highest seq that is known to be on stable storage."""
        return topic.in_flight.synced(self.change_log.shard_of(topic))

    def synced_or_none(self, topic: Topic) -> int | None:
        """Return `synced_seq` as it is reported to callers: None for an `ephemeral` topic."""
        return None if topic.durability is Durability.EPHEMERAL else self.synced_seq(topic)

    def sync_shard(self, topic: Topic) -> Pending[None]:
        """Return a Pending that settles when everything queued now for a topic's shard is synced and applied."""
        shard = self.change_log.shard_of(topic)
        shard.check_room()
        synced: Pending[None] = Pending()
        shard.sync(lambda _, error: synced.resolve(None) if error is None else synced.fail(error))
        self.change_log.schedule()
        return synced

    def hurry(self, topic: Topic) -> bool:
        """Request an immediate sync if the topic has unsynced records. Returns whether one was requested."""
        shard = self.change_log.shard_of(topic)
        self.synced_seq(topic)
        if not topic.in_flight.unsynced or not shard.has_room:
            return False
        shard.sync(None)
        self.change_log.schedule()
        return True

    def diff(self, name: str, query: PageQuery) -> Page | Fetch:
        """Return the page after a cursor, or a Fetch to wait for before asking again."""
        topic = self.topic(name)
        found = read_page(topic, query.clamped(self.settings.limits.page_records_max))
        return found if isinstance(found, Page) else self.fetching.wait_for(topic, found)

    def rows(self, topic: Topic, seqs: Sequence[int], budget: int) -> list[Slice] | Fetch:
        """Return the rows of `seqs` (ascending), up to `budget` bytes, or a Fetch to wait for before asking again."""
        found = rows_of(topic, seqs, budget)
        return found if isinstance(found, list) else self.fetching.wait_for(topic, found)

    def cursor_at(self, name: str, ts: int) -> int | Fetch:
        """Return the cursor before the first record at or after `ts`, or a Fetch to wait for before asking again."""
        topic = self.topic(name)
        found = cursor_at(topic, ts)
        return found if isinstance(found, int) else self.fetching.wait_for(topic, found)

    async def seek(self, name: str, ts: int) -> int:
        """Return the cursor before the first record at or after `ts`, and wait for missing blocks."""
        found = self.cursor_at(name, ts)
        while isinstance(found, Fetch):
            await found
            found = self.cursor_at(name, ts)
        return found

    # Closing and the rest

    def close(self) -> Pending[bool]:
        """Stop accepting work, finish what is in flight, take a last checkpoint; the result is whether it worked."""
        if self._closing is None:
            self._closing = Pending()
            self.upkeep.stop()
            self.pressure.stop()
            self.writers.close()
            self._close_when_quiet(self._clock.monotonic_ns() + _FILES_PATIENCE_NS)
        return self._closing

    def _close_when_quiet(self, patience_ns: int) -> None:
        flights = [topic.in_flight for topic in self.catalog.by_id.values()]
        under_way = any(flight.waiting or flight.records for flight in flights)
        # Wait for seals: a segment sealed after the last checkpoint is unknown to it, and the next start would seal it
        # again.
        segment_files = self.segment_files.busy and self._clock.monotonic_ns() < patience_ns
        if (under_way or segment_files) and all(shard.stopped is None for shard in self.shards.all):
            self._runtime.later(1, lambda: self._close_when_quiet(patience_ns))
            return
        self.checkpointer.run(clean=True).then(lambda done: self._closed_or_again(installed=done.result()))

    def _closed_or_again(self, *, installed: bool) -> None:
        """Try the last checkpoint once more if it lacked space, after the logs have given back what they do not use."""
        if installed or not self.checkpointer.lacked:
            self._closed(installed=installed)
            return
        self.change_log.space.shrink_logs()

        def again() -> None:
            self.checkpointer.run(clean=True).then(lambda done: self._closed(installed=done.result()))

        self._runtime.later(_SHRINK_MS, again)

    def _closed(self, *, installed: bool) -> None:
        self.writers.end()
        self.shards.close()
        self.upkeep.keep_space_reserve()
        if self._writer_process is not None:
            self._writer_process.close()
        self._writes.close()
        self._thread.close()
        self.fetching.close()
        self.publisher.close()
        self.blocks.store.close()
        self._lock.release()
        assert self._closing is not None
        self._closing.resolve(installed)

    def publish(self, topic: Topic) -> None:
        """Call the listeners of a topic that has new records or new holes."""
        for listener in self.listeners:
            listener(topic)

    def _loaded(self, topic: Topic) -> None:
        """Open a topic that was late and has all its records now."""
        self._recovery.open(topic)
        self.publish(topic)

    def loading_of(self, name: str) -> Pending[None] | None:
        """Return a Pending to wait for before using a topic that is late; None for any other topic."""
        topic = self.catalog.by_name.get(name) if self.loading.open else None
        return self.loading.wait(topic) if topic is not None and topic.late else None

    def _wake(self, topic: Topic) -> None:
        self.wakeups.wake(topic.name)

    def _covered(self, topic: Topic) -> None:
        """Wake those who wait for stable storage, because a checkpoint now has records that a failed write had lost."""
        self.publish(topic)
        self.synced.wake(topic.name)

    def _gone(self, topic: Topic, error: DriftQError) -> None:
        self._appender.forget(topic, error)
        self.publisher.forget(topic, error)

    def _remove_deleted(self) -> None:
        deleted, self.catalog.deleted = self.catalog.deleted, []
        for topic in deleted:
            self.segment_files.remove_topic(topic)

    @property
    def refusal(self) -> DriftQError | None:
        """Return the error that writes are refused with while the disk is full or the log writer hangs; else None."""
        full = (shard.failing for shard in self.shards.all if shard.read_only)
        hung = (shard.hung for shard in self.shards.all if shard.hung is not None)
        return self.change_log.space.refusal or next(full, next(hung, None))

    def check_open(self) -> None:
        """Raise ShuttingDownError if the engine is closing."""
        if self._closing is not None:
            raise ShuttingDownError("the server is shutting down", retry_after_ms=1000)


def _again_if_full(space: DiskSpace, call: Callable[[], Pending[T]]) -> Pending[T]:
    """Make a call; if it fails because the disk is full, make it once more when space has been freed."""
    answer: Pending[T] = Pending()

    def settle(done: Pending[T]) -> None:
        if isinstance(done.error, DiskFullError | ShardReadOnlyError):
            space.when_relieved(lambda: forward(call, answer))
        elif done.error is not None:
            answer.fail(done.error)
        else:
            answer.resolve(done.result())

    call().then(settle)
    return answer


async def _all_of(waiting: list[Pending[None]]) -> None:
    for due in waiting:
        await due
