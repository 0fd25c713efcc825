"""Sets up an engine on a simulated disk in one line, with short methods for tests: write, read, restart, crash.

Every call drives the runtime until nothing is due, unless its name ends in `_nowait`. Reads return records as on the
wire: dicts with `$seq`, `$ts` and so on. Every disk call goes through an `OrderCheckingDisk`.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from msgspec import json, structs

from driftq.codec.record_json import Fields, render_records
from driftq.codec.write_body import make_rows
from driftq.config import Settings
from driftq.engine.block_fetch import Fetch
from driftq.engine.engine import Engine
from driftq.engine.read.topic_page import Page, PageQuery
from driftq.engine.state.durable_feature import DurableState
from driftq.engine.state.topic import Topic
from driftq.engine.write.appender import AppendResult
from driftq.engine.write.deleter import Deleted, parse_match
from driftq.model.topic_config import Durability, TopicConfig
from driftq.storage.blocks.rows import Rows
from driftq.system.disk import Disk
from driftq.system.entropy import Entropy
from driftq.system.machine import BOOT_ID_BYTES
from driftq.system.runtime import Pending
from driftq.testing.manual_clock import ManualClock
from driftq.testing.manual_runtime import ManualRuntime
from driftq.testing.seeded_entropy import SeededEntropy
from driftq.testing.simulated_disk import CrashMode, SimDisk
from driftq.testing.sync_order import OrderCheckingDisk

T = TypeVar("T")

SMALL = Settings(data_dir="/data", wal_file_bytes=16 << 10, segment_max_events=16, disk_reserve_bytes=0)
"""Settings with which files rotate and segments are sealed after a few writes."""
_CLOSE_MS = 50
_FETCHES_MAX = 100


def rows_of(datas: Sequence[object], **columns: Any) -> Rows:
    """Return rows of JSON values; bytes count as JSON text. `columns` are those of `make_rows`."""
    return make_rows([data if isinstance(data, bytes) else json.encode(data) for data in datas], **columns)


class EngineRig:
    """An engine with fake disk, clock and runtime, which can crash and start again.

    `wrap` puts another disk between the engine and the simulated one, for example a faulty one.
    """

    def __init__(
        self,
        settings: Settings = SMALL,
        *,
        disk: SimDisk | None = None,
        clock: ManualClock | None = None,
        seed: int | None = None,
        features: Callable[[], tuple[DurableState, ...]] = tuple,
        wrap: Callable[[Disk], Disk] = lambda disk: disk,
        entropy: Entropy | None = None,
        **changes: object,
    ) -> None:
        self.settings = structs.replace(settings, **changes)
        self.disk = SimDisk() if disk is None else disk
        self.clock = ManualClock() if clock is None else clock
        self._seed = seed
        self._features = features
        self._wrap = wrap
        self._entropy = SeededEntropy(0) if entropy is None else entropy
        self.boot = 1
        """Number of boots of the machine: a crash increases it, a kill does not."""
        self.start()

    def start(self) -> None:
        """Open the engine on the disk as it is."""
        self.features = self._features()
        self.order = OrderCheckingDisk(self._wrap(self.disk))
        self.runtime = ManualRuntime(self.clock, self._seed, writer_processes_on=self.order)
        self.engine = Engine(
            self.order,
            self.clock,
            self.runtime,
            self.settings,
            self.features,
            boot_id=self.boot.to_bytes(BOOT_ID_BYTES),
            entropy=self._entropy,
        )

    # Driving the runtime

    def run(self, pending: Pending[T]) -> T:
        """Drive until nothing is due, then return the result or raise the error."""
        self.runtime.run_until_idle()
        assert not self.order.violations, self.order.violations
        return pending.result()

    def hold_wal(self) -> None:
        """Stop all WAL writers from running, so that writes which need a sync stay in flight."""
        for shard in range(self.settings.wal_shards):
            self.runtime.hold(f"driftq-wal-{shard}")

    def release_wal(self) -> None:
        """Let the WAL writers run again, and drive until nothing is due."""
        for shard in range(self.settings.wal_shards):
            self.runtime.release(f"driftq-wal-{shard}")
        self.runtime.run_until_idle()

    # Topics

    def put(self, name: str, durability: Durability = Durability.FSYNC, **config: Any) -> bool:
        """Create a topic, or replace its config."""
        return self.run(self.put_nowait(name, durability, **config))

    def put_nowait(self, name: str, durability: Durability = Durability.FSYNC, **config: Any) -> Pending[bool]:
        """Start to create a topic or to replace its config, without driving."""
        return self.engine.put_topic(name, TopicConfig(durability=durability, **config))

    def topic(self, name: str) -> Topic:
        """Return the state of a topic, with retention applied."""
        return self.engine.topic(name)

    # Records

    def write(self, name: str, *datas: object, **options: Any) -> AppendResult:
        """Write records; the options are those of `write_nowait`."""
        return self.run(self.write_nowait(name, *datas, **options))

    def write_nowait(
        self,
        name: str,
        *datas: object,
        key: str | None = None,
        create: bool | None = None,
        config: TopicConfig | None = None,
        **columns: Any,
    ) -> Pending[AppendResult]:
        """Start to write records, without driving: no loop turn has run."""
        return self.engine.append(name, rows_of(datas, **columns), key=key, create=create, config=config)

    def delete(self, name: str, *, before_seq: int | None = None, match: object = None) -> Deleted:
        """Delete records; `match` has the form it has on the wire."""
        parsed = None if match is None else parse_match(match)
        return self.run(self.engine.delete_records(name, before_seq=before_seq, match=parsed))

    def page(self, name: str, from_seq: int = 0, limit: int = 256, **query: Any) -> Page:
        """Read one page, and drive until all blocks it needs are loaded."""
        asked = PageQuery(from_seq, limit, **query)
        for _ in range(_FETCHES_MAX):
            found = self.engine.diff(name, asked)
            if not isinstance(found, Fetch):
                return found
            self.run(found)
        raise AssertionError(f"{name}: a page that is never there")

    def read(self, name: str, from_seq: int = 0, limit: int = 256, **query: Any) -> list[dict[str, Any]]:
        """Return the records of one page, with every field."""
        return decoded(self.page(name, from_seq, limit, **query))

    def walk(self, name: str, from_seq: int = 0, **query: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return all records after a cursor and all tombstones met, both as on the wire."""
        records: list[dict[str, Any]] = []
        tombstones: list[dict[str, Any]] = []
        while True:
            page = self.page(name, from_seq, **query)
            records += decoded(page)
            if page.tombstone is not None:
                tombstones.append(json.decode(json.encode(page.tombstone)))
            assert page.next_from_seq > from_seq or page.caught_up or page.tombstone is not None, "no way on"
            from_seq = page.next_from_seq
            if page.caught_up:
                return records, tombstones

    def seqs(self, name: str) -> list[int]:
        """Return the seqs of all live records."""
        return [record["$seq"] for record in self.walk(name)[0]]

    # Stop, crash and start

    def checkpoint(self) -> bool:
        """Take a checkpoint, and return whether it succeeded."""
        return self.run(self.engine.checkpointer.run())

    def close(self) -> bool:
        """Stop gracefully, and return whether the last checkpoint was taken."""
        closing = self.engine.close()
        self.runtime.advance(_CLOSE_MS)
        assert not self.order.violations, self.order.violations
        return closing.result()

    def restart(self, **changes: object) -> None:
        """Stop gracefully and start again, with changed settings."""
        assert self.close(), "no checkpoint was taken"
        self.settings = structs.replace(self.settings, **changes)
        self.start()

    def crash(self, mode: CrashMode = CrashMode.DROP, seed: int = 0, **changes: object) -> None:
        """Lose power and start again, with changed settings."""
        self.runtime.stop()
        self.disk = self.disk.crash(mode, seed)
        self.boot += 1
        self.settings = structs.replace(self.settings, **changes)
        self.start()

    def drain(self) -> None:
        """Kill the server, but let its writer processes write what they were sent. Needs an odd seed."""
        for writer_process in self.runtime.writer_processes:
            writer_process.drain()
        self.runtime.stop()

    def kill(self, **changes: object) -> None:
        """Kill the server and start again: what was written is still in the page cache."""
        self.runtime.stop()
        self.disk = self.disk.fork()
        self.settings = structs.replace(self.settings, **changes)
        self.start()


def decoded(page: Page) -> list[dict[str, Any]]:
    """Return the records of a page as a reader gets them, with every field."""
    found: list[dict[str, Any]] = json.decode(b"[" + render_records(page, Fields(tags=True)) + b"]")
    return found
