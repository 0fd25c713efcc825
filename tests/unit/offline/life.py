"""A server's life on a simulated disk that leaves files of every kind, and ways to break them."""

from collections.abc import Iterator
from typing import Any

from msgspec import json, structs

from driftq.codec.record_json import Fields, render_records
from driftq.config import Settings
from driftq.engine.block_fetch import Fetch
from driftq.engine.read.topic_page import Page, PageQuery
from driftq.engine.write.deleter import parse_match
from driftq.features.staging.staged_parts import PartAddress
from driftq.model.topic_config import Durability, TopicConfig
from driftq.offline.findings import VerificationReport
from driftq.offline.verification import verify
from driftq.server import Server
from driftq.storage.blocks.frame import Frame, read_frame
from driftq.storage.layout import Layout
from driftq.storage.wal.wal_head import read_wal_head
from driftq.system.disk import Site
from driftq.system.runtime import Pending
from driftq.testing import ManualClock, ManualRuntime, SimDisk
from driftq.testing.engine_rig import SMALL, rows_of
from tests.golden import directory

SETTINGS: Settings = structs.replace(
    SMALL, data_dir="/data", cold_dir="/cold", wal_file_bytes=8 << 10, segment_max_events=8, hot_retain_segments=2
)


class Life:
    """One run of a server; what it wrote and read is asked in short words."""

    def __init__(self, disk: SimDisk | None = None, **changes: object) -> None:
        self.disk = SimDisk(roots=("/data", "/cold")) if disk is None else disk
        self.settings = structs.replace(SETTINGS, **changes)
        self.clock = ManualClock()
        self.runtime = ManualRuntime(self.clock)
        self.server = Server(self.settings, self.disk, self.clock, self.runtime, missing_is_lost=True)
        self.engine = self.server.engine

    def run(self, pending: Pending[Any]) -> Any:
        """Drive until nothing is due."""
        self.runtime.run_until_idle()
        return pending.result()

    def put(self, name: str, durability: Durability = Durability.FSYNC, **config: Any) -> None:
        """A topic."""
        self.run(self.engine.put_topic(name, TopicConfig(durability=durability, **config)))

    def write(self, name: str, *datas: object, **columns: Any) -> None:
        """Records."""
        self.run(self.engine.append(name, rows_of(datas, **columns)))

    def delete(self, name: str, *, match: object = None, **selector: Any) -> None:
        """Delete records; `match` as on the wire."""
        parsed = None if match is None else parse_match(match)
        self.run(self.engine.delete_records(name, match=parsed, **selector))

    def checkpoint(self) -> None:
        """Take one."""
        assert self.run(self.engine.checkpointer.run())

    def stage(self, batch: int, *datas: object) -> None:
        """One staged part of topic `t.fsync`."""
        self.run(self.server.staging.stage("t.fsync", "w", PartAddress(batch, 0, 0, 0), rows_of(datas)))

    def close(self) -> None:
        """A graceful stop."""
        closing = self.server.close()
        self.runtime.advance(100)
        assert closing.result()

    def page(self, name: str, from_seq: int) -> Page:
        """One page."""
        while isinstance(found := self.engine.diff(name, PageQuery(from_seq, 256)), Fetch):
            self.run(found)
        return found

    def walk(self, name: str) -> tuple[list[dict[str, Any]], list[Any]]:
        """Every record of a topic, and every tombstone."""
        records: list[dict[str, Any]] = []
        tombstones = []
        from_seq = 0
        while True:
            page = self.page(name, from_seq)
            records += json.decode(b"[" + render_records(page, Fields(tags=True)) + b"]")
            if page.tombstone is not None:
                tombstones.append(page.tombstone)
            from_seq = page.next_from_seq
            if page.caught_up:
                return records, tombstones

    def picture(self) -> dict[str, list[dict[str, Any]]]:
        """Every record of every topic."""
        return {topic.name: self.walk(topic.name)[0] for topic in self.engine.catalog.visible()}


def lived(*, clean: bool = True) -> Life:
    """Topics of every class and column, deletes, caps, a checkpoint, both tiers, a log tail, staged parts."""
    life = Life()
    for durability in Durability:
        life.put(f"t.{durability}", durability)
    life.put("capped", Durability.FSYNC, cap_records=5)
    for number in range(12):
        for durability in Durability:
            tags = [f"order-{number}", None]
            life.write(
                f"t.{durability}", {"n": number}, "größe", tags=tags, nodes=[None, "a"], metas=[b'{"k":1}', None]
            )
        life.write("capped", number)
    life.write("t.fsync", *range(30), tags=[f"bulk-{n}" for n in range(30)])
    life.delete("t.fsync", match=["tag", "Glob", "order-1*"])
    life.delete("t.disk", before_seq=4)
    life.runtime.advance(12_000)
    life.checkpoint()
    life.delete("t.fsync", seqs=[40, 41])
    life.stage(0, "staged", 1)
    for number in range(4):
        life.write("t.fsync", f"behind {number}", tags=["tail"])
    if clean:
        life.checkpoint()
        life.runtime.advance(12_000)
        life.close()
    return life


def layout(disk: SimDisk) -> Layout:
    """Both directories."""
    return Layout(disk, "/data", "/cold")


def checked(disk: SimDisk) -> VerificationReport:
    """What a reading finds."""
    return verify(layout(disk))


# Breaking things, for good


def contents(disk: SimDisk) -> dict[str, bytes]:
    """Every file of both directories."""
    return directory.files_of(disk, "/data") | directory.files_of(disk, "/cold")


def overwrite(disk: SimDisk, path: str, place: int, value: bytes) -> None:
    """Some bytes become others."""
    file = disk.open(path)
    file.pwritev([value], place)
    file.sync(Site.WAL_TIMER)
    file.close()


def truncate(disk: SimDisk, path: str, size: int) -> None:
    """A file loses its end."""
    file = disk.open(path)
    file.truncate(size)
    file.sync(Site.WAL_TIMER)
    file.close()


def kind_of(path: str) -> str:
    """What kind of file a path names."""
    return path.rpartition(".")[2] if "/seg-" in path else path.split("/")[2]


def used_bytes(path: str, content: bytes) -> int:
    """How many bytes of a file say anything: a WAL file is zeros behind its last frame."""
    if kind_of(path) != "wal":
        return len(content)
    end = 0
    for frame in frames(content):
        end = frame.end
    return end


def frames(content: bytes) -> Iterator[Frame]:
    """The frames of a file, from its first byte."""
    head = read_wal_head(content)
    if head is not None:
        yield head.frame
    place, salt = (0, 0) if head is None else (head.frames_at, head.salt)
    while isinstance(frame := read_frame(content, place, len(content), salt), Frame):
        yield frame
        place = frame.end
