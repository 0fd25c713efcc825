"""The thread for the files of staged parts: writes and syncs them, reads them for a commit, removes them.

Jobs run in the order in which they were queued, so a part for a commit is read before a later job removes it. Parts
that wait together share the sync of their directory. If a part cannot be written or synced, its caller gets the error
and removes the rest of the file; nothing else depends on it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

from driftq.storage.blocks.rows import Rows
from driftq.storage.layout import Layout
from driftq.storage.part_file import FoundPart, PartHead, encode_part, read_head, read_rows
from driftq.system.disk import File, Site, write_fully
from driftq.system.runtime import Runtime, SerialWorker

Done = Callable[[OSError | None], None]
Loaded = Callable[[list[Rows | None], OSError | None], None]
_Job = Callable[[], Done | None]
"""Does the work. If its result needs a sync of the directory, returns the callback to call after that sync."""


class StageFiles:
    """The files in the directory `stage/`."""

    def __init__(self, runtime: Runtime, layout: Layout) -> None:
        self._runtime = runtime
        self._layout = layout
        self._disk = layout.disk
        self._worker: SerialWorker[_Job] = runtime.worker("driftq-stage", self._handle)

    def close(self) -> None:
        """Finish the queued jobs, then end the thread."""
        self._worker.close()

    def found(self) -> list[tuple[int, FoundPart | None]]:
        """Return every file with its decoded head, oldest first. Runs on the calling thread, at start."""
        return [
            (number, read_head(self._disk, self._layout.stage_path(number))) for number in self._layout.stage_files()
        ]

    def write(self, number: int, topic_id: int, head: PartHead, rows: Rows, done: Done) -> None:
        """Write and sync a part, then call `done` on the event loop with None or the error."""

        def work() -> Done | None:
            path = self._layout.stage_path(number)
            try:
                self._write(path, encode_part(topic_id, head, rows))
            except OSError as error:
                self._tell(done, error)
                return None
            return done

        self._worker.put(work)

    def read(self, numbers: Sequence[int], done: Loaded) -> None:
        """Read the records of parts; the result has None for a part that is not complete."""

        def work() -> None:
            try:
                rows = [read_rows(self._disk, self._layout.stage_path(number)) for number in numbers]
            except OSError as error:
                failure = error
                self._runtime.from_thread(lambda: done([], failure))
            else:
                self._runtime.from_thread(lambda: done(rows, None))

        self._worker.put(work)

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove parts later, without a sync. If a crash restores a file, the next start finds and removes it."""
        self._worker.put(lambda: self._unlink(numbers))

    def drop(self, numbers: Sequence[int], done: Done) -> None:
        """Remove parts durably, then call `done`."""

        def work() -> Done:
            self._unlink(numbers)
            return done

        self._worker.put(work)

    def _handle(self, jobs: list[_Job]) -> None:
        waiting = [done for job in jobs if (done := job()) is not None]
        if not waiting:
            return
        error: OSError | None = None
        try:
            self._disk.sync_dir(self._layout.stage_dir, Site.STAGE_DIR)
        except OSError as failure:
            error = failure
        for done in waiting:
            self._tell(done, error)

    def _write(self, path: str, buffers: Sequence[bytes]) -> None:
        file: File = self._disk.create(path)
        try:
            write_fully(file, buffers, 0)
            file.sync(Site.STAGE_FILE)
        finally:
            file.close()

    def _unlink(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            with suppress(OSError):  # the next start removes files that are left over
                self._disk.unlink(self._layout.stage_path(number))

    def _tell(self, done: Done, error: OSError | None) -> None:
        self._runtime.from_thread(lambda: done(error))
