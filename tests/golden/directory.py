"""A whole data directory and what an engine must find in it: every class and column, deletes, segments, a checkpoint.

The run ends without a word, so the directory has a checkpoint, a WAL tail behind it, hot segments and cold ones.
"""

from pathlib import Path

from msgspec import Struct, structs

from driftq.config import Settings
from driftq.model.topic_config import Durability
from driftq.system.disk import Site
from driftq.testing import SimDisk
from driftq.testing.engine_rig import SMALL, EngineRig

ROOTS = ("data", "cold")
SETTINGS: Settings = structs.replace(
    SMALL, data_dir="/data", cold_dir="/cold", wal_file_bytes=8 << 10, segment_max_events=8, hot_retain_segments=1
)


class Found(Struct, frozen=True):
    """What readers can learn of one topic, by the rules of its class after a crash."""

    head: int
    earliest: int
    count: int
    payload: int
    holes: list[tuple[int, int, str]]
    records: list[dict[str, object]]


def build() -> EngineRig:
    """The run."""
    rig = EngineRig(SETTINGS, disk=SimDisk(roots=("/data", "/cold")))
    for durability in Durability:
        rig.put(f"t.{durability}", durability)
    rig.put("capped", Durability.FSYNC, cap_records=5)
    rig.put("gone", Durability.FSYNC)
    for number in range(12):
        for durability in Durability:
            rig.write(
                f"t.{durability}",
                {"n": number},
                "größe 😀",
                tags=[f"order-{number}", None],
                nodes=[None, "node-a"],
                metas=[b'{"k":"v"}', None],
            )
        rig.write("capped", number)
    rig.write("t.fsync", 1, 2, key="an idempotency key", batch_node="node-b")
    rig.delete("t.fsync", match=["tag", "Glob", "order-1*"])
    rig.delete("t.disk", before_seq=4)
    rig.run(rig.engine.delete_topic("gone"))
    rig.runtime.advance(12_000)
    rig.checkpoint()
    rig.runtime.advance(6_000)
    rig.write("t.fsync", "behind the checkpoint", tags=["order-tail"])
    rig.delete("t.fsync", match="order-5")
    return rig


def files_of(disk: SimDisk, directory: str) -> dict[str, bytes]:
    """Every file below a directory."""
    found: dict[str, bytes] = {}
    for name in disk.names(directory):
        path = f"{directory}/{name}"
        if name.startswith("."):
            continue
        try:
            file = disk.open(path)
        except IsADirectoryError:
            found |= files_of(disk, path)
        else:
            found[path] = file.pread(file.size(), 0)
            file.close()
    return found


def loaded(directory: Path) -> SimDisk:
    """Return a simulated disk that has a directory's files on its device: a simulated power loss keeps them."""
    disk = SimDisk(roots=("/data", "/cold"))
    for path in sorted(directory.rglob("*")):
        inside = f"/{path.relative_to(directory)}"
        if path.is_dir():
            disk.mkdir(inside)
        else:
            file = disk.create(inside)
            file.pwritev([path.read_bytes()], 0)
            file.sync(Site.SEGMENT_DATA)
            file.close()
    for path in (directory, *directory.rglob("*")):
        if path.is_dir():
            disk.sync_dir(f"/{path.relative_to(directory)}".removesuffix("/."), Site.SEGMENT_DIR)
    return disk


def picture(rig: EngineRig) -> dict[str, Found]:
    """Every topic."""
    found = {}
    for topic in rig.engine.catalog.visible():
        holes = [(hole.first, hole.last, str(hole.reason)) for hole in topic.holes.all]
        records, _ = rig.walk(topic.name)
        found[topic.name] = Found(topic.head, topic.earliest, topic.count, topic.payload, holes, records)
    return found
