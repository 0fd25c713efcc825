"""One simulated server and its clients: runs operations, keeps the ledger, takes an image behind every disk call."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from driftq.codec.write_body import make_rows
from driftq.config import Settings
from driftq.engine.engine import Engine
from driftq.engine.write.appender import AppendResult
from driftq.engine.write.deleter import Deleted, parse_match
from driftq.model.topic_config import Durability, TopicConfig
from driftq.system.disk import Disk, Site
from driftq.system.runtime import Pending
from driftq.testing import CrashMode, ManualClock, ManualRuntime, OrderCheckingDisk, SeededEntropy, SimDisk
from tests.crash.judge import judge, require
from tests.crash.ledger import SYNCED_CLASSES, Bounds, Delete, Ledger, Row, Write, data_of
from tests.crash.reading import Reading, picture, read_all

SETTINGS = Settings(
    data_dir="/data",
    wal_file_bytes=8192,
    disk_reserve_bytes=0,
    segment_max_events=16,
    hot_retain_segments=1,
    checkpoint_wal_bytes=1 << 40,
    checkpoint_interval_ms=1 << 40,
)
"""Small files and segments, so that a short run rotates and seals; checkpoints come when they are asked for."""


@dataclass(frozen=True)
class Image:
    """A disk behind one of its calls, and what had been asked and answered by then."""

    number: int
    call: str
    disk: SimDisk
    ledger: Ledger
    wall_ms: int
    settings: Settings


class World:
    """A server on a simulated disk, driven step by step."""

    def __init__(
        self,
        disk: SimDisk | None = None,
        *,
        ledger: Ledger | None = None,
        wall_ms: int = 1_700_000_000_000,
        settings: Settings = SETTINGS,
        seed: int | None = None,
        ignore: Site | None = None,
        order: bool = True,
        keep_images: bool = False,
        wrap: Callable[[SimDisk], Disk] | None = None,
    ) -> None:
        self.disk = disk if disk is not None else SimDisk(["/data", "/cold"], ignore=ignore)
        self.ledger = ledger if ledger is not None else Ledger()
        self.ledger.bounds = Bounds(self.ledger.bounds.cap_lost)
        self.clock = ManualClock(wall_ms)
        self.settings = settings
        self.images: list[Image] = []
        self._seed = seed
        self._wrap = wrap if wrap is not None else OrderCheckingDisk if order else _plain
        self._recording = keep_images
        self._readings: dict[str, Reading] | None = None
        self.record(self.disk)

    def record(self, disk: SimDisk) -> None:
        """Go on with this disk, and take an image behind each of its calls if that is wanted."""
        self.disk = disk
        if self._recording:
            disk.on_call = self._called
            self._called("start", "")

    def _called(self, operation: str, path: str) -> None:
        ledger = self.ledger.copy()
        call, now = f"{operation} {path}", self.clock.wall_ms()
        self.images.append(Image(len(self.images), call, self.disk.fork(), ledger, now, self.settings))

    # Life and death

    def start(self, **changed: Any) -> "World":
        """Open the engine; it may raise."""
        if changed:
            self.settings = replace(self.settings, **changed)
        self._readings = None
        disk = self._wrap(self.disk)
        self.runtime = ManualRuntime(self.clock, self._seed, writer_processes_on=disk)
        self.engine = Engine(disk, self.clock, self.runtime, self.settings, entropy=SeededEntropy(0))
        return self

    def kill(self, **changed: Any) -> "World":
        """The process dies, the machine stays up; then the next one starts and shows what it has."""
        self.runtime.stop()
        self.record(self.disk.fork())
        return self._again(**changed)

    def drain(self) -> None:
        """The server is killed, and the processes that write for it are not: they write what they were sent."""
        for writer_process in self.runtime.writer_processes:
            writer_process.drain()
        self.runtime.stop()

    def die_alone(self, **changed: Any) -> "World":
        """The same, and the next server starts and shows what it has."""
        self.drain()
        self.record(self.disk.fork())
        return self._again(**changed)

    def crash(self, mode: CrashMode, seed: int = 0, **changed: Any) -> "World":
        """The machine loses power; then the next process starts and shows what it has."""
        self.runtime.stop()
        self.record(self.disk.crash(mode, seed))
        return self._again(**changed)

    def close(self, **changed: Any) -> "World":
        """A graceful stop, and a start behind it."""
        closing = self.engine.close()
        self.runtime.advance(1000)
        assert closing.result(), "the last checkpoint was not taken"
        self.record(self.disk.fork())
        return self._again(**changed)

    def write_back(self, directory: str) -> None:
        """The kernel writes back what is below a directory, as it may at any time."""
        for name in self.disk.names(directory):
            path = f"{directory}/{name}"
            try:
                file = self.disk.open(path)
            except IsADirectoryError:
                self.write_back(path)
            else:
                file.sync(Site.WAL_TIMER)
                file.close()
        self.disk.sync_dir(directory, Site.WAL_TIMER)

    def _again(self, **changed: Any) -> "World":
        self.start(**changed)
        self.show()
        return self

    def show(self) -> None:
        """Readers see everything there is; a restart behind this may not take any of it back."""
        readings = self.read_everything()
        for topic in self.engine.catalog.visible():
            self.ledger.shown(topic.id, readings[topic.name].records)
            self.look(topic.name)

    # What clients do

    def put(self, name: str, durability: Durability | str = Durability.FSYNC, **config: Any) -> Pending[bool]:
        """Create or update a topic."""
        self._readings = None
        wanted = TopicConfig(durability=Durability(durability), **config)
        pending = self.engine.put_topic(name, wanted)
        place = self.ledger.topic_asked(name, self._instance(name), wanted.resolved(name))
        ledger = self.ledger
        pending.then(lambda done: None if done.error else ledger.topic_acked(name, place))
        return pending

    def drop(self, name: str) -> Pending[bool]:
        """Delete a topic."""
        self._readings = None
        instance = self._instance(name)
        pending = self.engine.delete_topic(name)
        place = self.ledger.topic_asked(name, instance, None)
        ledger = self.ledger
        pending.then(lambda done: None if done.error else ledger.topic_acked(name, place))
        return pending

    def append(
        self,
        name: str,
        count: int = 1,
        *,
        tags: Sequence[str | None] | None = None,
        nodes: Sequence[str | None] | None = None,
        metas: Sequence[str | None] | None = None,
        batch_node: str | None = None,
        key: str | None = None,
        padding: int = 0,
    ) -> Pending[AppendResult]:
        """Write a batch; tags, nodes and metas are taken in turns."""
        number = len(self.ledger.writes)
        datas = [data_of(number, row, padding) for row in range(count)]
        turns = [
            [values[row % len(values)] for row in range(count)] if values else None for values in (tags, nodes, metas)
        ]
        tag, node, meta = turns
        raw_metas = None if meta is None else [None if m is None else b'{"m":"%b"}' % m.encode() for m in meta]
        self._readings = None
        instance = self._instance(name)
        topic = self.engine.catalog.by_id[instance]
        rows = make_rows(datas, tag, node, raw_metas, batch_node)
        pending = self.engine.append(name, rows, key=key)
        ledger = self.ledger
        written = tuple(
            Row(
                datas[row],
                _encoded(tag, row),
                _encoded(node, row) if node is not None and node[row] is not None else _raw(batch_node),
                None if raw_metas is None else raw_metas[row],
            )
            for row in range(count)
        )
        number = ledger.write_asked(Write(instance, written, key, topic.durability))

        def settle(done: Pending[AppendResult]) -> None:
            if done.error is not None:
                ledger.failed[number] = done.error
            elif not done.result().deduped:
                ledger.write_acked(number, done.result().first_seq, done.result().ts, topic.durability)

        pending.then(settle)
        return pending

    def delete(
        self,
        name: str,
        *,
        before: int | None = None,
        tag: str | None = None,
        prefix: str | None = None,
        seqs: list[int] | None = None,
    ) -> Pending[Deleted]:
        """Delete records."""
        self._readings = None
        topic = self.engine.topic(name)
        match: object = tag if tag is not None else None if prefix is None else ["tag", "Glob", f"{prefix}*"]
        pending = self.engine.delete_records(
            name, before_seq=before, match=None if match is None else parse_match(match), seqs=seqs
        )
        asked = Delete(
            topic.id, topic.head + 1, before, _raw(tag), _raw(prefix), None if seqs is None else frozenset(seqs)
        )
        ledger = self.ledger
        number = ledger.delete_asked(asked)
        promised = topic.durability in SYNCED_CLASSES
        pending.then(lambda done: None if done.error else ledger.delete_acked(number, promised=promised))
        return pending

    def look(self, name: str) -> None:
        """A reader is shown the floors, and is told what is synced."""
        topic = self.engine.topic(name)
        synced = self.engine.synced_seq(topic)
        if topic.durability is not Durability.EPHEMERAL:
            self.ledger.synced_told(topic.id, synced)
            if synced >= topic.head:
                self.ledger.floors_shown(topic.id, topic.earliest, topic.evict_floor)

    def read(self, name: str, *, limit: int = 256) -> Reading:
        """Everything of a topic, page by page."""
        return read_all(self.engine, self.runtime, name, limit=limit)

    def _instance(self, name: str) -> int:
        topic = self.engine.catalog.by_name.get(name)
        return 0 if topic is None else topic.id

    # Time

    def settle(self) -> None:
        """Until nothing is left to do, and everybody has looked."""
        self.runtime.run_until_idle()
        self._quiet()

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self._readings = None
        self.runtime.advance(ms)
        self._quiet()

    def _quiet(self) -> None:
        bounds, self.ledger.bounds = self.ledger.bounds, Bounds()
        for topic in self.engine.catalog.visible():
            self.look(topic.name)
            bounds.cap_lost[topic.id] = topic.cap_lost

    def checkpoint(self) -> bool:
        """Take one, to its end."""
        taken = self.engine.checkpointer.run()
        self.runtime.run_until_idle()
        self._quiet()
        return taken.result()

    # Verdicts

    def judge(self, *, limit: int = 256) -> None:
        """Check every promise."""
        self._readings = judge(self.engine, self.runtime, self.ledger, limit=limit)

    def picture(self) -> dict[str, Any]:
        """Every logical field."""
        return picture(self.engine, self.read_everything())

    def read_everything(self) -> dict[str, Reading]:
        """Every topic, page by page; read again only when something was written since."""
        if self._readings is None:
            self._readings = {topic.name: self.read(topic.name) for topic in self.engine.catalog.visible()}
        return self._readings

    def probe(self, rng: random.Random) -> None:
        """The second life: a write to every topic, acked, with a seq behind the head; keys known; a delete or not."""
        self._use_keys_again()
        topics = [*self.engine.catalog.visible()]
        heads = {topic.id: topic.head for topic in topics}
        answers = [(topic, self.append(topic.name, rng.randint(1, 3), tags=["probe"])) for topic in topics]
        self.settle()
        if rng.getrandbits(1):
            deletes = [self.delete(topic.name, tag=rng.choice(("a", "b"))) for topic in topics]
            self.settle()
            for deleted in deletes:
                deleted.result()
        for topic, pending in answers:
            answer = pending.result()
            require(answer.first_seq == heads[topic.id] + 1, f"{topic.name}: {answer} behind {heads[topic.id]}")

    def _use_keys_again(self) -> None:
        """A key is known exactly when its write is: then it gets the same seqs, and appends nothing."""
        ledger = self.ledger
        readings = self.read_everything()
        # By what they hold: the seqs of a `memory` write that a crash took are given out again.
        shown = {topic.id: {r.data for r in readings[topic.name].records} for topic in self.engine.catalog.visible()}
        asked = []
        for write in [w for w in ledger.writes.values() if w.key is not None and w.first_seq and w.instance in shown]:
            topic = self.engine.catalog.by_id[write.instance]
            there = any(row.data in shown[topic.id] for row in write.rows)
            fresh = self.engine.time.now() - write.ts <= topic.config.idempotency_window_ms
            if fresh and (there or write.durability is Durability.FSYNC):
                asked.append((write, self.append(topic.name, 1, key=write.key)))
        self.settle()
        for write, pending in asked:
            answer = pending.result()
            require(answer.deduped, f"the key of {write} is forgotten")
            require((answer.first_seq, answer.count) == (write.first_seq, len(write.rows)), f"{answer} for {write}")


def _plain(disk: SimDisk) -> Disk:
    return disk


def _raw(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _encoded(values: Sequence[str | None] | None, row: int) -> bytes | None:
    return None if values is None else _raw(values[row])
