"""The shards of one run: all frames of a topic go to one shard, which the topic id selects.

The first file number of a run is above every number in every shard directory. So a replay by file number is in the
original order, even if earlier runs had other shard counts. The number is also not below `least`, where the newest
checkpoint lets replay begin: after a checkpoint on a full disk there may be no file at all.
"""

from collections.abc import Sequence

from driftq import __version__
from driftq.storage.layout import Layout
from driftq.storage.wal.group_commit import Shard
from driftq.storage.wal.wal_file import WalFiles
from driftq.storage.wal.wal_head import FileHead
from driftq.system.clock import Clock
from driftq.system.entropy import Entropy
from driftq.system.lock import Lock
from driftq.system.machine import UNKNOWN_BOOT
from driftq.system.runtime import Runtime


class Shards:
    """All shards of a running server."""

    def __init__(
        self,
        layout: Layout,
        runtime: Runtime,
        clock: Clock,
        *,
        count: int,
        file_bytes: int,
        lock: Lock | None = None,
        boot_id: bytes = UNKNOWN_BOOT,
        entropy: Entropy | None = None,
        least: int = 0,
        keeps_reserve: bool = False,
    ) -> None:
        run = max(least, 1 + max((number for number, _ in layout.wal_files()), default=0))
        self.names = [layout.shard_name(shard, count) for shard in range(count)]
        shards = []
        for name in layout.wal_dirs():
            if name not in self.names:
                layout.disk.unlink(layout.wal_reserve_path(name))
        for shard, name in enumerate(self.names):
            files = WalFiles(layout, name, file_bytes, keeps_reserve=keeps_reserve)
            files.make_directory()
            files.keep_reserve()
            head = FileHead(run, shard, count, 0, 0, boot_id=boot_id, written_by=__version__)
            shards.append(Shard(runtime, clock, files, head, lock, entropy=entropy))
        self.all: Sequence[Shard] = shards

    def of(self, topic_id: int) -> Shard:
        """Return the shard of a topic."""
        return self.all[topic_id % len(self.all)]

    @property
    def bytes_written(self) -> int:
        """Return the bytes that all shards have written, as far as reported."""
        return sum(shard.counters.bytes for shard in self.all)

    def flush(self) -> None:
        """Send everything that was queued in this loop turn to the writers."""
        for shard in self.all:
            if shard.dirty:
                shard.flush()

    def hand_over(self) -> None:
        """Call the `handed` callbacks of all shards whose writers have everything that was flushed."""
        for shard in self.all:
            shard.hand_over()

    def close(self) -> None:
        """Write and sync what every shard has queued, and end the writers."""
        for shard in self.all:
            shard.close()
