"""Whether there is room for records, as one answer for the whole engine, and who is told when that changes.

    roomy → short: records are refused; what makes room works, and so do reads
          ← short ends when nothing is short of space any more

Four things can be short, each for itself: a shard whose next WAL file cannot be made (`storage/wal/wal_writer`),
segments whose blocks cannot be written (`engine/files/segment_files`), a checkpoint that cannot be written
(`engine/files/checkpoint`), and the reserve file for the next checkpoint (`storage/space_reserve`).

Invariants
- While any of them is short no records are taken, so what is in memory and in no segment does not grow. Otherwise there
  would be more and more to write into the next checkpoint, which is what makes room.
- `ephemeral` topics need no disk and are never refused.
- What uses the reserve of the log is never refused here: deletes, topic deletes and updates, acks.
"""

import logging
from collections.abc import Callable, Sequence

from driftq.errors import DriftQError
from driftq.storage.no_space import is_no_space, write_error
from driftq.storage.wal.group_commit import Shard
from driftq.system.log_facts import facts

_log = logging.getLogger(__name__)


class DiskSpace:
    """What is short of space."""

    def __init__(self) -> None:
        self._shards: Sequence[Shard] = ()
        self._files: dict[object, OSError] = {}
        """What cannot be written, besides the log: topics whose segments, and what else gives itself a name."""
        self.short = False
        """Whether records are refused."""
        self._relieving = False
        self._waiting: list[Callable[[], None]] = []
        self.free_last: Callable[[Callable[[], None]], None] = lambda then: then()
        """Frees the last space that there is to give, and calls back."""
        self.on_roomy: Callable[[], None] | None = None
        """Called when they are taken again."""
        self.on_short: Callable[[], None] | None = None
        """Called when records begin to be refused, and while they are whenever there is something to be freed."""

    def watch(self, shards: Sequence[Shard]) -> None:
        """From now on the logs count too."""
        self._shards = shards
        for shard in shards:
            shard.on_room = self._look

    @property
    def refusal(self) -> DriftQError | None:
        """What records are refused with, for all topics alike; None where there is room."""
        if not self.short:
            return None
        for shard in self._shards:
            if shard.full is not None:
                return shard.full
        error = next(iter(self._files.values()), None)
        # A log that has room again settles what waited for it before it calls back.
        return None if error is None else write_error("there is no room for segments and checkpoints", error)

    def check(self) -> None:
        """Refuse records while there is no room for them. Raises DiskFullError or ShardReadOnlyError."""
        refusal = self.refusal
        if refusal is not None:
            raise refusal

    def note(self, what: object, error: Exception | None) -> None:
        """Take note of what became of a write of something: that it lacks space, or with None that it has it again."""
        if error is None:
            self._files.pop(what, None)
        elif isinstance(error, OSError) and is_no_space(error):
            self._files[what] = error
        self._look()

    def can_be_freed(self) -> None:
        """There are files that a checkpoint would remove: have one taken, where space is short."""
        if self.short and self.on_short is not None:
            self.on_short()

    def relief_begins(self) -> None:
        """Somebody is about to free space."""
        self._relieving = True

    def relief_ends(self) -> None:
        """What could be freed is free: logs look for room, and those who waited for it go on."""
        self._relieving = False
        self.look_for_room()
        if self._waiting:
            self.free_last(self._go_on)

    def when_relieved(self, act: Callable[[], None]) -> None:
        """Do something that had no room in the log: when the last space there is to give has been freed."""
        self._waiting.append(act)
        if not self._relieving:
            self.free_last(self._go_on)

    def _go_on(self) -> None:
        self.look_for_room()
        waiting, self._waiting = self._waiting, []
        for act in waiting:
            act()

    def shrink_logs(self) -> None:
        """Have every log give back the space that it does not use: a checkpoint has none."""
        for shard in self._shards:
            shard.look_for_room(shrink=True)

    def look_for_room(self) -> None:
        """Have every log that is full see now whether there is room again: something was freed."""
        for shard in self._shards:
            if shard.full is not None:
                shard.look_for_room()

    def _look(self) -> None:
        before, self.short = self.short, bool(self._files) or any(shard.full is not None for shard in self._shards)
        if self.short == before:
            return
        if self.short and all(shard.full is None for shard in self._shards):  # of those `engine/writer_watch` tells
            _log.error("writes are refused, reads are answered", extra=facts(reason=str(self.refusal)))
        changed = self.on_short if self.short else self.on_roomy
        if changed is not None:
            changed()
