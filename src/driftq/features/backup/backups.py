"""The part of a backup that runs on the event loop: starts one backup at a time, and keeps the results.

    begun → a checkpoint, so that little is left in memory → pinned and captured, in one turn → copying → done | failed

A backup contains the state of the turn in which it is captured: everything acked before that turn, and nothing later.
Topics, queues, groups and routers are consistent, because one event loop owns them all. The captured state names
files, which do not change while they are pinned (`engine/files/segment_files`).

Staged parts that wait for their commit are not part of a backup: their writers stage them again.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from msgspec import Struct, field

from driftq.engine.engine import Engine
from driftq.errors import NotFoundError, ThrottledError
from driftq.features.backup.backup_copy import BackupFigures, CancelledError, Copying
from driftq.features.backup.backup_files import BackupManifest, newest_ts
from driftq.storage.layout import Layout
from driftq.system.clock import Clock
from driftq.system.entropy import Entropy
from driftq.system.hang_guard import Patience
from driftq.system.log_facts import facts
from driftq.system.runtime import Pending, Runtime, SerialWorker

_KEPT = 100
_RETRY_MS = 1000
_LOOK_S = 5.0
"""How many seconds the search for backups of earlier runs may take. A stop waits for it, and must end in 9.5 s."""

_log = logging.getLogger(__name__)


class Backup(Struct):
    """One backup that this run of the server has started."""

    id: str
    to: str
    began_ts: int
    state: str = "checkpoint"
    """One of checkpoint, copying, done or failed."""
    figures: BackupFigures = field(default_factory=BackupFigures)
    taken_ts: int | None = None
    ended_ts: int | None = None
    damaged: list[str] = []
    error: str | None = None


class Backups:
    """The backups that this run of the server has started, at most `_KEPT`."""

    def __init__(self, layout: Layout, engine: Engine, runtime: Runtime, clock: Clock, entropy: Entropy) -> None:
        self._layout = layout
        self._engine = engine
        self._runtime = runtime
        self._clock = clock
        self._entropy = entropy
        self._running: Backup | None = None
        self._worker: SerialWorker[Callable[[], None]] | None = None
        self._closing = False
        self.all: dict[str, Backup] = {}
        self.last_ts: int | None = None
        """The time of the state in the newest known backup, or None."""

    def look_for_last(self, directory: str | None) -> None:
        """Find out, on the backup thread, when an earlier run took its last backup to a directory."""
        if directory is not None:
            self._put(partial(self._find_last, directory))

    def _find_last(self, directory: str) -> None:
        with suppress(OSError):
            found = Patience(_LOOK_S).call(partial(newest_ts, self._layout.disk, directory), directory)
            if found is not None:
                self._runtime.from_thread(lambda: self._found_last(found))

    def _found_last(self, found: int) -> None:
        self.last_ts = max(found, self.last_ts or 0)

    def _put(self, work: Callable[[], None]) -> None:
        if self._worker is None:
            self._worker = self._runtime.worker("driftq-backup", _run_all)
        self._worker.put(work)

    def begin(self, to: str, server_id: str) -> Backup:
        """Start a backup into a directory. Raise ThrottledError while another one runs, and ShuttingDownError."""
        self._engine.check_open()
        if self._running is not None:
            message = f"backup {self._running.id} is running; only one can run at a time"
            raise ThrottledError(message, retry_after_ms=_RETRY_MS)
        began = self._clock.wall_ms()
        backup = Backup(f"b{began:013}-{self._entropy.token(2).hex()}", to, began)
        self._running = self.all[backup.id] = backup
        while len(self.all) > _KEPT:
            del self.all[next(iter(self.all))]
        self._engine.checkpointer.run().then(lambda done: self._captured(backup, server_id, done))
        return backup

    def get(self, backup_id: str) -> Backup:
        """Return a backup that this run of the server has started. Raise NotFoundError if it is unknown."""
        if backup_id not in self.all:
            raise NotFoundError(f"this run of the server has no backup {backup_id!r}")
        return self.all[backup_id]

    def close(self) -> None:
        """Cancel the running backup, and wait for the thread."""
        self._closing = True
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _captured(self, backup: Backup, server_id: str, done: Pending[bool]) -> None:
        """Pin and capture the state in the turn in which the checkpoint ended, and pass it to the thread."""
        if self._closing or done.error is not None or not done.result():
            self._end(backup, "the checkpoint before the backup failed")
            return
        engine = self._engine
        engine.segment_files.pin()
        try:
            snapshot = engine.checkpointer.capture()
        except OSError as error:
            engine.segment_files.unpin()
            self._end(backup, f"a block could not be read: {error.strerror}")
            return
        backup.state, backup.taken_ts = "copying", self._clock.wall_ms()
        copying = Copying(
            self._layout,
            backup.to,
            backup.id,
            server_id,
            backup.taken_ts,
            snapshot,
            backup.figures,
            lambda: self._closing,
        )
        self._put(partial(self._copy, backup, copying))

    def _copy(self, backup: Backup, copying: Copying) -> None:
        """Copy the files, on the backup thread, and report the result to the loop."""
        try:
            manifest = copying.run()
        except CancelledError:
            self._runtime.from_thread(lambda: self._copied(backup, None, "the server was stopped"))
        except OSError as error:
            what = f"{error.filename or backup.to}: {error.strerror or error}"
            self._runtime.from_thread(lambda: self._copied(backup, None, what))
        except Exception as bug:  # noqa: BLE001 - the files must not stay pinned, whatever failed
            what = f"internal error: {bug!r}"
            self._runtime.from_thread(lambda: self._copied(backup, None, what))
        else:
            self._runtime.from_thread(lambda: self._copied(backup, manifest, None))

    def _copied(self, backup: Backup, manifest: BackupManifest | None, error: str | None) -> None:
        self._engine.segment_files.unpin()
        if manifest is not None:
            backup.damaged = manifest.damaged
        self._end(backup, error)

    def _end(self, backup: Backup, error: str | None) -> None:
        backup.state = "done" if error is None else "failed"
        if error is None and backup.taken_ts is not None:
            self.last_ts = max(backup.taken_ts, self.last_ts or 0)
        backup.error = error
        backup.ended_ts = self._clock.wall_ms()
        named = facts(backup=backup.id, to=backup.to, reason=error, copied_bytes=backup.figures.copied_bytes)
        if error is None:
            _log.info("backup done", extra=named)
        else:
            _log.warning("backup failed", extra=named)
        self._running = None


def _run_all(jobs: list[Callable[[], None]]) -> None:
    for job in jobs:
        job()
