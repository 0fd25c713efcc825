"""The paths in a data directory. Every path is made here, from numbers; names that users choose are never part of one.

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
_SEGMENT = re.compile(r"seg-([0-9]{16})\.([a-z]+)")
HOT_SUFFIXES = frozenset(("data", "idx", "tags"))
COLD_SUFFIXES = frozenset(("parquet", "del"))
_TOPIC = re.compile(r"[0-9A-F]{8,}")


def make_directory(disk: Disk, path: str) -> None:
    """Make a directory and its parents. Each name is durable before anything is put into it."""
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
    """Return the path of a segment file, relative to the root of its tier."""
    return f"topics/{topic_id:08X}/seg-{first_seq:016}.{suffix}"


def is_segment_file(path: str, suffixes: frozenset[str]) -> bool:
    """Whether a path has the form that `segment_file` gives, with one of these suffixes."""
    parts = path.split("/")
    if len(parts) != 3 or parts[0] != "topics" or not _TOPIC.fullmatch(parts[1]):
        return False
    match = _SEGMENT.fullmatch(parts[2])
    return match is not None and match[2] in suffixes


class Layout:
    """The paths of one data directory and, with tiering, of its cold directory."""

    __slots__ = ("cold", "data", "disk")

    def __init__(self, disk: Disk, data: str, cold: str | None = None) -> None:
        self.disk = disk
        self.data = data
        self.cold = cold

    def prepare(self) -> None:
        """Make the directories that every server has, and make their entries durable.

        Existing ones are synced too: the process that made them may have died before its sync.
        """
        for name in ("meta", "wal", "topics"):
            self.disk.mkdir(f"{self.data}/{name}")
        self.disk.sync_dir(self.data, Site.LAYOUT_DIR)

    def prepare_stage(self) -> None:
        """Make the directory of staged parts durable. Called after recovery, so that a refused start makes none."""
        self.disk.mkdir(self.stage_dir)
        self.disk.sync_dir(self.data, Site.LAYOUT_DIR)

    def prepare_cold(self) -> None:
        """Make the cold directory and its `topics` durable. Called after recovery, because `has_cold` is true then."""
        assert self.cold is not None
        make_directory(self.disk, self.cold)
        self.disk.mkdir(self.topics_dir(cold=True))
        self.disk.sync_dir(self.cold, Site.LAYOUT_DIR)

    def has_cold(self) -> bool:
        """Whether the cold directory exists and a server has used it. False if it is not mounted."""
        return self.cold is not None and self.disk.exists(self.topics_dir(cold=True))

    @property
    def lock_path(self) -> str:
        """Return the path of the lock file."""
        return f"{self.data}/.driftq.lock"

    @property
    def space_reserve_path(self) -> str:
        """Return the path of the file that only takes space."""
        return f"{self.data}/.driftq.reserve"

    @property
    def meta_dir(self) -> str:
        """Return the directory of the checkpoints."""
        return f"{self.data}/meta"

    def snapshot_path(self, number: int) -> str:
        """Return the path of one checkpoint."""
        return f"{self.data}/meta/snapshot-{number:016}.bin"

    def snapshots(self) -> list[int]:
        """Return the numbers of the finished checkpoints, oldest first."""
        found = (_number(_SNAPSHOT, name) for name in self.disk.names(self.meta_dir))
        return sorted(number for number in found if number is not None)

    @property
    def stage_dir(self) -> str:
        """Return the directory of the staged parts."""
        return f"{self.data}/stage"

    def stage_path(self, number: int) -> str:
        """Return the path of one staged part."""
        return f"{self.stage_dir}/part-{number:016}.bin"

    def stage_files(self) -> list[int]:
        """Return the numbers of the staged parts, oldest first."""
        found = (_number(_PART, name) for name in self.disk.names(self.stage_dir))
        return sorted(number for number in found if number is not None)

    def shard_name(self, shard: int, shards: int) -> str:
        """Return the name of a shard's directory below `wal/`; "" if there is only one shard."""
        return "" if shards == 1 else f"shard-{shard:02}"

    def wal_dir(self, name: str) -> str:
        """Return the directory of a shard."""
        return f"{self.data}/wal/{name}" if name else f"{self.data}/wal"

    def wal_path(self, name: str, number: int) -> str:
        """Return the path of one WAL file."""
        return f"{self.wal_dir(name)}/wal-{number:016}.log"

    def wal_reserve_path(self, name: str) -> str:
        """Return the path of the file of zeros that becomes a WAL file if no other can be made."""
        return f"{self.wal_dir(name)}/.driftq.reserve"

    def wal_dirs(self) -> list[str]:
        """Return the names of all existing shard directories. The first is "", for `wal/` itself."""
        return ["", *(n for n in self.disk.names(f"{self.data}/wal") if _SHARD.fullmatch(n))]

    def wal_files(self) -> list[tuple[int, str]]:
        """Return every WAL file as (number, directory name), in the order of replay."""
        return sorted(
            (number, name)
            for name in self.wal_dirs()
            for number in (_number(_WAL, file) for file in self.disk.names(self.wal_dir(name)))
            if number is not None
        )

    def topics_dir(self, *, cold: bool) -> str:
        """Return the parent of the topics' directories."""
        root = self.cold if cold else self.data
        assert root is not None
        return f"{root}/topics"

    def lost(self) -> "Layout":
        """Return the layout of `lost/`, which has the files of segments that were given up, under the same names."""
        return Layout(self.disk, f"{self.data}/lost", None if self.cold is None else f"{self.cold}/lost")

    def topic_dir(self, topic_id: int, *, cold: bool) -> str:
        """Return the directory of one topic."""
        return f"{self.topics_dir(cold=cold)}/{topic_id:08X}"

    def segment_path(self, topic_id: int, first_seq: int, suffix: str) -> str:
        """Return the path of a segment file. The suffix determines the tier."""
        root = self.cold if suffix in COLD_SUFFIXES else self.data
        return f"{root}/{segment_file(topic_id, first_seq, suffix)}"

    def topic_ids(self, *, cold: bool) -> list[int]:
        """Return the ids of all topics that have a directory."""
        if cold and self.cold is None:
            return []
        names = self.disk.names(self.topics_dir(cold=cold))
        return [int(name, 16) for name in names if _TOPIC.fullmatch(name)]

    def segment_files(self, topic_id: int, *, cold: bool) -> dict[int, set[str]]:
        """Return the existing suffixes by first seq, of this tier only: both tiers may share one directory."""
        found: dict[int, set[str]] = {}
        if cold and self.cold is None:
            return found
        for name in self.disk.names(self.topic_dir(topic_id, cold=cold)):
            match = _SEGMENT.fullmatch(name)
            if match and (match[2] in COLD_SUFFIXES) == cold:
                found.setdefault(int(match[1]), set()).add(match[2])
        return found
