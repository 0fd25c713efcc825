"""Where things stand in a data directory. Every path is made here, from numbers; no user's name becomes a part of one.

<data>/.driftq.lock                               exclusive advisory lock, "pid=<n>\\n"
<data>/meta/snapshot-<id:016>.bin                 checkpoints
<data>/wal/wal-<n:016>.log                        one shard
<data>/wal/shard-<NN>/wal-<n:016>.log             more than one
<data>/.driftq.reserve                            space for a checkpoint on a full disk (`storage/space_reserve`)
<data>/wal/.driftq.reserve                        a WAL file for a full disk (`storage/wal/wal_file`); one per shard
<data>/stage/part-<n:016>.bin                     staged parts
<data>/topics/<id:08X>/seg-<first_seq:016>.*      hot segments: .data, .idx, .tags
<cold>/topics/<id:08X>/seg-<first_seq:016>.*      cold segments: .parquet, .del
<data>/lost/topics/…, <cold>/lost/topics/…        files of segments that were given up
"""

import posixpath
import re

from driftq.system.disk import Disk, Site

_WAL = re.compile(r"wal-(\d{16})\.log")
_SHARD = re.compile(r"shard-(\d{2,})")
_PART = re.compile(r"part-(\d{16})\.bin")
_SNAPSHOT = re.compile(r"snapshot-(\d{16})\.bin")
_SEGMENT = re.compile(r"seg-(\d{16})\.([a-z]+)")
COLD_SUFFIXES = frozenset(("parquet", "del"))
_TOPIC = re.compile(r"[0-9A-F]{8,}")


def make_directory(disk: Disk, path: str) -> None:
    """Make a directory and what is above it; its name is durable before anything can be put into it."""
    if disk.exists(path):
        return
    parent = posixpath.dirname(path.rstrip("/")) or "."
    make_directory(disk, parent)
    if disk.mkdir(path):
        disk.sync_dir(parent, Site.LAYOUT_DIR)


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.fullmatch(name)
    return int(match[1]) if match else None


def segment_file(topic_id: int, first_seq: int, suffix: str) -> str:
    """One file of a segment, from the root of its tier."""
    return f"topics/{topic_id:08X}/seg-{first_seq:016}.{suffix}"


class Layout:
    """The paths of one data directory and, with tiering, of its cold directory."""

    __slots__ = ("cold", "data", "disk")

    def __init__(self, disk: Disk, data: str, cold: str | None = None) -> None:
        self.disk = disk
        self.data = data
        self.cold = cold

    def prepare(self) -> None:
        """Make the directories that every server has, and their entries durable.

        Synced even when they are there: the process that made them may have died before it could.
        """
        for name in ("meta", "wal", "topics"):
            self.disk.mkdir(f"{self.data}/{name}")
        self.disk.sync_dir(self.data, Site.LAYOUT_DIR)

    def prepare_stage(self) -> None:
        """Make the directory of staged parts, durably. Recovery comes first: a start that it refuses makes none."""
        self.disk.mkdir(self.stage_dir)
        self.disk.sync_dir(self.data, Site.LAYOUT_DIR)

    def prepare_cold(self) -> None:
        """Make the cold directory and what it has, durably. From then on it `has_cold`, so recovery comes first."""
        assert self.cold is not None
        make_directory(self.disk, self.cold)
        self.disk.mkdir(self.topics_dir(cold=True))
        self.disk.sync_dir(self.cold, Site.LAYOUT_DIR)

    def has_cold(self) -> bool:
        """Is the cold directory there, and one that a server has had? Where it is not mounted it is not."""
        return self.cold is not None and self.disk.exists(self.topics_dir(cold=True))

    @property
    def lock_path(self) -> str:
        """The lock file."""
        return f"{self.data}/.driftq.lock"

    @property
    def ballast_path(self) -> str:
        """The file that only takes space."""
        return f"{self.data}/.driftq.reserve"

    @property
    def meta_dir(self) -> str:
        """Where checkpoints stand."""
        return f"{self.data}/meta"

    def snapshot_path(self, number: int) -> str:
        """One checkpoint."""
        return f"{self.data}/meta/snapshot-{number:016}.bin"

    def snapshots(self) -> list[int]:
        """Numbers of the finished checkpoints, oldest first."""
        found = (_number(_SNAPSHOT, name) for name in self.disk.names(self.meta_dir))
        return sorted(number for number in found if number is not None)

    @property
    def stage_dir(self) -> str:
        """Where staged parts stand."""
        return f"{self.data}/stage"

    def stage_path(self, number: int) -> str:
        """One staged part."""
        return f"{self.stage_dir}/part-{number:016}.bin"

    def stage_files(self) -> list[int]:
        """Numbers of the staged parts, oldest first."""
        found = (_number(_PART, name) for name in self.disk.names(self.stage_dir))
        return sorted(number for number in found if number is not None)

    def shard_name(self, shard: int, shards: int) -> str:
        """The name of a shard's directory below `wal/`; empty for the only one."""
        return "" if shards == 1 else f"shard-{shard:02}"

    def wal_dir(self, name: str) -> str:
        """A shard's directory."""
        return f"{self.data}/wal/{name}" if name else f"{self.data}/wal"

    def wal_path(self, name: str, number: int) -> str:
        """One WAL file."""
        return f"{self.wal_dir(name)}/wal-{number:016}.log"

    def wal_reserve_path(self, name: str) -> str:
        """The file of zeros that becomes a WAL file where no other can be made."""
        return f"{self.wal_dir(name)}/.driftq.reserve"

    def wal_dirs(self) -> list[str]:
        """The names of every shard directory there is, the flat one first."""
        return ["", *(n for n in self.disk.names(f"{self.data}/wal") if _SHARD.fullmatch(n))]

    def wal_files(self) -> list[tuple[int, str]]:
        """Every WAL file as (number, directory name), in the order of replay."""
        return sorted(
            (number, name)
            for name in self.wal_dirs()
            for number in (_number(_WAL, file) for file in self.disk.names(self.wal_dir(name)))
            if number is not None
        )

    def topics_dir(self, *, cold: bool) -> str:
        """Where the directories of topics stand."""
        root = self.cold if cold else self.data
        assert root is not None
        return f"{root}/topics"

    def lost(self) -> "Layout":
        """Return where files of segments that were given up are kept, in the same places below `lost/`."""
        return Layout(self.disk, f"{self.data}/lost", None if self.cold is None else f"{self.cold}/lost")

    def topic_dir(self, topic_id: int, *, cold: bool) -> str:
        """One topic's directory."""
        return f"{self.topics_dir(cold=cold)}/{topic_id:08X}"

    def segment_path(self, topic_id: int, first_seq: int, suffix: str) -> str:
        """One file of a segment; the suffix tells the tier."""
        root = self.cold if suffix in COLD_SUFFIXES else self.data
        return f"{root}/{segment_file(topic_id, first_seq, suffix)}"

    def topic_ids(self, *, cold: bool) -> list[int]:
        """Every topic that has a directory."""
        if cold and self.cold is None:
            return []
        names = self.disk.names(self.topics_dir(cold=cold))
        return [int(name, 16) for name in names if _TOPIC.fullmatch(name)]

    def segment_files(self, topic_id: int, *, cold: bool) -> dict[int, set[str]]:
        """First seq to the suffixes that are there, of this tier only: both may stand in one directory."""
        found: dict[int, set[str]] = {}
        if cold and self.cold is None:
            return found
        for name in self.disk.names(self.topic_dir(topic_id, cold=cold)):
            match = _SEGMENT.fullmatch(name)
            if match and (match[2] in COLD_SUFFIXES) == cold:
                found.setdefault(int(match[1]), set()).add(match[2])
        return found
