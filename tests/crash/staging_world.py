"""A server with staged writes and named cursors, its one writer, and what the two have told each other.

The writer publishes batch after batch into a topic of class `fsync` and one of class `disk`, and moves a cursor behind
each. After a crash it knows only what it was told, and does everything again that it was not told is done.
"""

import random
from dataclasses import dataclass, field

from msgspec import json
from msgspec.structs import replace

from driftq.codec.write_body import make_rows
from driftq.engine.engine import Engine
from driftq.errors import StageIncompleteError
from driftq.features.cursors import NamedCursors
from driftq.features.staging.staged_parts import PartAddress
from driftq.features.staging.staging import CommitResult, PartRef, Staging
from driftq.model.topic_config import Durability, TopicConfig
from driftq.storage.layout import Layout
from driftq.system.disk import Site
from driftq.system.runtime import Pending
from driftq.testing import ManualClock, ManualRuntime, OrderCheckingDisk, SimDisk
from tests.crash.judge import Violation
from tests.crash.reading import read_all
from tests.crash.world import SETTINGS

TOPICS = {"fsync": Durability.FSYNC, "disk": Durability.DISK}
_SIZES = (3, 300)
"""Records of the parts of a batch: one that is gathered, and one that is a block of its own."""


@dataclass
class Told:
    """What the writer has been told."""

    topics: set[str] = field(default_factory=set)
    staged: set[tuple[str, int, int]] = field(default_factory=set)
    """Topic, batch, part."""
    asked: dict[str, int] = field(default_factory=dict)
    """Per topic the newest batch whose commit was asked for."""
    committed: dict[str, int] = field(default_factory=dict)
    synced: dict[str, int] = field(default_factory=dict)
    """Per topic the newest batch that `synced_seq` covered."""
    cursors: dict[str, int] = field(default_factory=dict)
    """Where cursors stood when everything was synced."""

    def copy(self) -> "Told":
        """The same, from here on on its own."""
        return Told(
            set(self.topics),
            set(self.staged),
            dict(self.asked),
            dict(self.committed),
            dict(self.synced),
            dict(self.cursors),
        )


@dataclass(frozen=True)
class Image:
    """A disk behind one of its calls, and what had been told by then."""

    call: str
    disk: SimDisk
    told: Told


class StagingWorld:
    """The server, on a simulated disk."""

    def __init__(
        self,
        disk: SimDisk | None = None,
        told: Told | None = None,
        *,
        seed: int | None = None,
        ignore: Site | None = None,
        keep_images: bool = False,
    ) -> None:
        self.disk = disk if disk is not None else SimDisk(["/data", "/cold"], ignore=ignore)
        self.told = told if told is not None else Told()
        self.images: list[Image] = []
        if keep_images:
            self.disk.on_call = self._called
        self.clock = ManualClock(1_700_000_000_000)
        checked = OrderCheckingDisk(self.disk)
        self.runtime = ManualRuntime(self.clock, seed, writer_processes_on=checked)
        self.staging = Staging(3_600_000)
        self.cursors = NamedCursors()
        settings = replace(SETTINGS, wal_file_bytes=32 << 10, segment_max_events=400)
        self.engine = Engine(checked, self.clock, self.runtime, settings, (self.staging, self.cursors))
        self.cursors.bind(self.engine)
        self.staging.open(self.engine, self.runtime, Layout(checked, "/data"))

    def _called(self, operation: str, path: str) -> None:
        self.images.append(Image(f"{operation} {path}", self.disk.fork(), self.told.copy()))

    def settle(self, ms: int = 0) -> None:
        """Until nothing is due."""
        self.runtime.run_until_idle()
        if ms:
            self.runtime.advance(ms)
            for name in self.told.topics:
                topic = self.engine.topic(name)
                if self.engine.synced_seq(topic) == topic.head and name in self.told.committed:
                    self.told.synced[name] = self.told.committed[name]
            self.told.cursors = {
                name: found.seq for name in self.told.topics for found in self.cursors.all(name).values()
            }

    # The writer

    def create(self) -> None:
        """Make the topics."""
        for name, durability in TOPICS.items():
            made = self.engine.put_topic(name, TopicConfig(durability=durability))
            self.settle()
            made.result()
            self.told.topics.add(name)

    def stage(self, name: str, batch: int, part: int) -> None:
        """Stage one part."""
        datas = [json.encode([batch, part, row]) for row in range(_SIZES[part])]
        staged = self.staging.stage(name, "w", PartAddress(batch, part, 0, 0), make_rows(datas))
        staged.then(lambda done: self.told.staged.add((name, batch, part)) if done.error is None else None)

    def commit_nowait(self, name: str, batch: int) -> Pending[CommitResult]:
        """Commit a batch."""
        self.told.asked[name] = max(batch, self.told.asked.get(name, -1))
        parts = [PartRef(part, 0, 1) for part in range(len(_SIZES))]
        committed = self.staging.commit(name, "w", batch, parts)

        def heard(done: Pending[CommitResult]) -> None:
            if done.error is None:
                self.told.committed[name] = max(batch, self.told.committed.get(name, -1))

        committed.then(heard)
        return committed

    def publish(self, name: str, batch: int) -> None:
        """A whole batch, and a cursor behind it."""
        for part in range(len(_SIZES)):
            self.stage(name, batch, part)
        self.settle()
        self.commit_nowait(name, batch)
        self.settle()
        self.cursors.put(name, "reader", self.engine.topic(name).head)

    # The judge

    def judge(self) -> None:
        """Everything that was promised is there."""
        for name in self.told.topics:
            if self.engine.catalog.find(name) is None:
                raise Violation(f"topic {name} is gone")
        for name in TOPICS:
            if self.engine.catalog.find(name) is not None:
                self._judge(name)

    def _judge(self, name: str) -> None:
        found = self.batches(name)
        known = self._last(name)
        if found and max(found) != known:
            raise Violation(f"{name}: the log has batch {max(found)}, the writer's last is {known}")
        promised = self.told.committed if TOPICS[name] is Durability.FSYNC else self.told.synced
        if promised.get(name, -1) > known:
            raise Violation(f"{name}: batch {promised[name]} is lost, the last is {known}")
        if TOPICS[name] is Durability.FSYNC and found != list(range(known + 1)):
            raise Violation(f"{name}: batches {found}, and the last is {known}")
        cursor = self.cursors.all(name).get("reader")
        if self.told.cursors.get(name, 0) > (cursor.seq if cursor is not None else 0):
            raise Violation(f"{name}: the cursor is at {cursor}, and was at {self.told.cursors[name]}")

    def _last(self, name: str) -> int:
        writers = self.staging._writers.get(self.engine.topic(name).id, {})
        return writers["w"].batch if "w" in writers else -1

    def batches(self, name: str) -> list[int]:
        """The batches in a topic, each whole."""
        values = [json.decode(record.data) for record in read_all(self.engine, self.runtime, name).records]
        found = []
        whole = [[part, row] for part, size in enumerate(_SIZES) for row in range(size)]
        for start in range(0, len(values), len(whole)):
            batch = values[start : start + len(whole)]
            if [value[1:] for value in batch] != whole or len({value[0] for value in batch}) != 1:
                raise Violation(f"{name}: a batch is there in part: {batch[:2]} … {batch[-2:]}")
            found.append(batch[0][0])
        if found != sorted(set(found)):
            raise Violation(f"{name}: batches {found}")
        return found

    def finish(self, rng: random.Random) -> None:
        """The writer goes on as one that knows only what it was told: every batch is there once in the end."""
        for name in self.told.topics:
            before = self.batches(name)
            for batch in range(self._last(name) + 1, self.told.asked.get(name, -1) + 1):
                self._repeat(name, batch)
                before.append(batch)
            again = rng.randint(0, self._last(name) + 1)
            self.publish(name, again)
            before += [again] if again not in before and again == self._last(name) else []
            if self.batches(name) != before:
                raise Violation(f"{name}: batches {self.batches(name)} behind the retries, and not {before}")

    def _repeat(self, name: str, batch: int) -> None:
        """Commit again; what was staged must still be there, the rest is staged again."""
        committed = self.commit_nowait(name, batch)
        self.settle()
        if isinstance(committed.error, StageIncompleteError):
            detail = committed.error.detail
            assert detail is not None
            missing = detail["missing"]
            assert isinstance(missing, list)
            for part in missing:
                if (name, batch, part["part"]) in self.told.staged:
                    raise Violation(f"{name}: part {part} of batch {batch} was staged, and is gone")
            for part in range(len(_SIZES)):
                self.stage(name, batch, part)
            self.settle()
            committed = self.commit_nowait(name, batch)
            self.settle()
        committed.result()
