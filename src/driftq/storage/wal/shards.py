"""The shards of one run: a topic's frames all go to one of them, chosen by its id.

A run's first file number is above every number in every shard directory, so that replay by file number is the original
order whatever the shard counts were. It is not below that at which the newest checkpoint lets replay begin (`least`):
a checkpoint on a full disk may have been followed by no file at all.
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
        """The shard of a topic."""
        return self.all[topic_id % len(self.all)]

    def flush(self) -> None:
        """Hand over what this loop turn has queued."""
        for shard in self.all:
            if shard.dirty:
                shard.flush()

    def hand_over(self) -> None:
        """Tell those who wait for it that the writers have what was flushed."""
        for shard in self.all:
            shard.hand_over()

    def close(self) -> None:
        """Write, sync and end every shard."""
        for shard in self.all:
            shard.close()
