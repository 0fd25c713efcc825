"""Whether the disk has space for records: one answer for the whole engine, and callbacks when the answer changes.

    roomy → short: records are refused; operations that free space still work, and so do reads
          ← short ends when nothing is short of space any more

Four things can be short of space, independently: a shard whose next WAL file cannot be created
(`storage/wal/wal_writer`), segments whose blocks cannot be written (`engine/files/segment_files`), a checkpoint that
cannot be written (`engine/files/checkpoint`), and the reserve file for the next checkpoint (`storage/space_reserve`).

Invariants
- While any of them is short, no records are accepted. So the data that is in memory and not yet in a segment does not
  grow. Otherwise the next checkpoint, which frees space, would have more and more to write.
- `ephemeral` topics need no disk and are never refused.
- Operations that use the reserve of the log are never refused here: deletes, topic deletes and updates, acks.
"""

import logging
from collections.abc import Callable, Sequence

from driftq.errors import DriftQError
from driftq.storage.no_space import is_no_space, write_error
from driftq.storage.wal.group_commit import Shard
from driftq.system.log_facts import facts

_log = logging.getLogger(__name__)


class DiskSpace:
    """Keeps track of what is short of space."""

    def __init__(self) -> None:
        self._shards: Sequence[Shard] = ()
        self._files: dict[object, OSError] = {}
        """Errors of writes besides the log, by the topic whose segments cannot be written, or by another writer."""
        self.short = False
        """Whether records are refused now."""
        self._relieving = False
        self._waiting: list[Callable[[], None]] = []
        self.free_last: Callable[[Callable[[], None]], None] = lambda then: then()
        """Frees the last space that can be freed, then calls its argument."""
        self.on_roomy: Callable[[], None] | None = None
        """Called when records are accepted again."""
        self.on_short: Callable[[], None] | None = None
        """Called when records begin to be refused, and again while they are refused whenever files can be freed."""

    def watch(self, shards: Sequence[Shard]) -> None:
        """Watch these logs for lack of space too, from now on."""
        self._shards = shards
        for shard in shards:
            shard.on_room = self._look

    @property
    def refusal(self) -> DriftQError | None:
        """Return the error that records of every topic are refused with; None while there is space."""
        if not self.short:
            return None
        for shard in self._shards:
            if shard.full is not None:
                return shard.full
        error = next(iter(self._files.values()), None)
        # When a log has space again, it settles the writes that waited for it before it calls back.
        return None if error is None else write_error("there is not enough space for segments and checkpoints", error)

    def check(self) -> None:
        """Raise DiskFullError or ShardReadOnlyError while there is no space for records."""
        refusal = self.refusal
        if refusal is not None:
            raise refusal

    def note(self, what: object, error: Exception | None) -> None:
        """Store the result of writing `what`: an error that may be a lack of space, or None for success."""
        if error is None:
            self._files.pop(what, None)
        elif isinstance(error, OSError) and is_no_space(error):
            self._files[what] = error
        self._look()

    def can_be_freed(self) -> None:
        """Start a checkpoint if space is short: there are files that it would remove."""
        if self.short and self.on_short is not None:
            self.on_short()

    def relief_begins(self) -> None:
        """Mark that a checkpoint is about to free space."""
        self._relieving = True

    def relief_ends(self) -> None:
        """Mark that the checkpoint has freed what it could: full logs check for space, and waiting actions run."""
        self._relieving = False
        self.look_for_room()
        if self._waiting:
            self.free_last(self._go_on)

    def when_relieved(self, act: Callable[[], None]) -> None:
        """Run `act`, which found no space in the log, after the last space that can be freed is free."""
        self._waiting.append(act)
        if not self._relieving:
            self.free_last(self._go_on)

    def _go_on(self) -> None:
        self.look_for_room()
        waiting, self._waiting = self._waiting, []
        for act in waiting:
            act()

    def shrink_logs(self) -> None:
        """Make every log give back the space that it does not use, because a checkpoint has none."""
        for shard in self._shards:
            shard.look_for_room(shrink=True)

    def look_for_room(self) -> None:
        """Make every full log check now whether there is space again, because something was freed."""
        for shard in self._shards:
            if shard.full is not None:
                shard.look_for_room()

    def _look(self) -> None:
        before, self.short = self.short, bool(self._files) or any(shard.full is not None for shard in self._shards)
        if self.short == before:
            return
        if self.short and all(shard.full is None for shard in self._shards):  # `engine/writer_watch` logs full shards
            _log.error("writes are refused, reads are answered", extra=facts(reason=str(self.refusal)))
        changed = self.on_short if self.short else self.on_roomy
        if changed is not None:
            changed()
