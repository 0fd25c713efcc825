"""Routers on a disk that crashes: a run whose readers are remembered, and the judgement of what a crash left of it."""

import random
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from driftq.testing import CrashMode, ServerRig, SimDisk

KILL = "kill"
MODES = (*CrashMode, KILL)


@dataclass
class Witness:
    """What readers have been shown, by topic and seq, and what they have deleted."""

    shown: dict[str, dict[int, Any]] = field(default_factory=dict)
    gone: set[tuple[str, int]] = field(default_factory=set)
    """Deleted and acked: never to come back. Evicted: neither, unless a crash takes the write that did it."""
    asked: set[tuple[str, int]] = field(default_factory=set)
    """A delete of it has been asked for, and not been answered."""


@dataclass
class Image:
    """A disk behind one of its calls, and the witness of that moment."""

    call: str
    disk: SimDisk
    witness: Witness


class Run:
    """A server and its readers."""

    def __init__(self, seed: int, *, durability: str = "fsync", shards: int = 1) -> None:
        self.durability = durability
        self.witness = Witness()
        self.images: list[Image] = []
        self.disk = SimDisk(["/data"])
        self.disk.on_call = self._called
        self.rig = ServerRig(disk=self.disk, seed=seed, wal_shards=shards, checkpoint_interval_ms=10**9)

    def _called(self, operation: str, path: str) -> None:
        self.images.append(Image(f"{operation} {path}", self.disk.fork(), deepcopy(self.witness)))

    def topic(self, *names: str, **config: Any) -> None:
        """Create topics, or give them another config."""
        for name in names:
            self.rig.ok("PUT", f"/v0/topics/{name}", {"durability": self.durability, **config})
            self.witness.shown.setdefault(name, {})
        self.read()

    def router(self, name: str, source: str, dest: str, **fields: Any) -> None:
        """Create or change a router."""
        self.rig.ok("PUT", f"/v0/routers/{name}", {"source": source, "dest": dest, **fields})
        self.read()

    def end(self, name: str) -> None:
        """Delete a router."""
        self.rig.ok("DELETE", f"/v0/routers/{name}")
        self.read()

    def write(self, topic: str, *values: Any, tag: str = "t") -> None:
        """Write, then let everybody read."""
        self.rig.ok("POST", f"/v0/topics/{topic}", {"records": [{"data": value, "tag": tag} for value in values]})
        self.read()

    def delete(self, topic: str, **selector: Any) -> None:
        """Delete, then let everybody read."""
        below = selector.get("before_seq", 1 << 60)
        tag = selector.get("match")
        doomed = {
            (topic, seq)
            for seq, record in self.witness.shown[topic].items()
            if seq < below and tag in (None, record.get("$tag"))
        }
        self.witness.asked |= doomed
        self.rig.ok("POST", f"/v0/topics/{topic}/delete", selector)
        self.witness.asked -= doomed
        self.witness.gone |= doomed
        self.read()

    def checkpoint(self) -> None:
        """Take one."""
        done = self.rig.server.engine.checkpointer.run()
        self.rig.run()
        assert done.result()

    def read(self) -> None:
        """Everybody sees what there is, also what routers have passed by now."""
        for topic, before in self.witness.shown.items():
            now = live(self.rig, topic)
            if self.durability == "fsync":
                self.witness.gone |= {(topic, seq) for seq in before.keys() - now.keys()}
            self.witness.shown[topic] = now
            assert not [seq for seq in now if (topic, seq) in self.witness.gone], topic


def live(rig: ServerRig, topic: str) -> dict[int, Any]:
    """The records of a topic by their seqs, `$ts` aside."""
    found: dict[int, Any] = {}
    cursor = 0
    while True:
        page = rig.diff(topic, cursor, include_tags=True, limit=1000)
        for record in page["records"]:
            found[record.pop("$seq")] = {key: value for key, value in record.items() if key != "$ts"}
        if page["caught_up"]:
            return found
        cursor = page["next_from_seq"]


def sweep(run: Run, states: int, *, seed: int = 0) -> None:
    """Crash a run behind some of its calls, the first and the last among them, and judge what is there afterwards."""
    rng = random.Random(seed)
    images = [run.images[0], run.images[-1], *rng.choices(run.images, k=states)]
    for image in images:
        mode = rng.choice(MODES)
        disk = image.disk.fork() if mode == KILL else image.disk.crash(CrashMode(mode), rng.randrange(9))
        _judge(run, image, mode, disk, shards=rng.choice([run.rig.settings.wal_shards, 1, 2]))


def _judge(run: Run, image: Image, mode: str, disk: SimDisk, *, shards: int) -> None:
    what = f"{image.call}, {mode}, {shards} shards"
    rig = ServerRig(disk=disk, wal_shards=shards, checkpoint_interval_ms=10**9)
    found = {}
    for topic, shown in image.witness.shown.items():
        if rig.ask("GET", f"/v0/topics/{topic}").status == 404:
            assert not shown, f"{what}: {topic} is gone"
            continue
        found[topic] = now = live(rig, topic)
        state = rig.ok("GET", f"/v0/topics/{topic}")
        for seq in now:
            assert (topic, seq) not in image.witness.gone, f"{what}: {topic} {seq} has come back"
        for seq, record in shown.items():
            if seq in now:
                assert now[seq] == record, f"{what}: {topic} {seq} is another one"
            else:
                evicted = state["config"]["cap_records"] and seq < state["earliest_seq"]
                lost = run.durability != "fsync" and seq <= state["head_seq"]
                assert evicted or lost or (topic, seq) in image.witness.asked, f"{what}: {topic} {seq} is lost"
    rig.runtime.stop()
    again = ServerRig(disk=rig.disk.crash(CrashMode.DROP, 0), wal_shards=3 - shards, checkpoint_interval_ms=10**9)
    for topic, records in found.items():
        assert live(again, topic) == records, f"{what}: {topic} is not what the first start showed"
    again.runtime.stop()
