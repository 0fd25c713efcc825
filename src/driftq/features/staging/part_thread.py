"""The thread that keeps staged parts on disk: writes and syncs them, reads them for a commit, removes them.

Jobs are done in the order they were given, so a part that a commit has asked for is read before a later job removes it.
Parts that wait together share the sync of their directory. Of a part that could not be written or synced its caller is
told, and removes what is left of it; nothing else depends on it.
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
"""Does its work; where that becomes true only with a sync of the directory, returns who is to be told of it."""


class StageFiles:
    """The files below `stage/`."""

    def __init__(self, runtime: Runtime, layout: Layout) -> None:
        self._runtime = runtime
        self._layout = layout
        self._disk = layout.disk
        self._worker: SerialWorker[_Job] = runtime.worker("driftq-stage", self._handle)

    def close(self) -> None:
        """Do what is queued, then end the thread."""
        self._worker.close()

    def found(self) -> list[tuple[int, FoundPart | None]]:
        """Every file there is, oldest first, with what it says of itself. For a start, on the calling thread."""
        return [
            (number, read_head(self._disk, self._layout.stage_path(number))) for number in self._layout.stage_files()
        ]

    def write(self, number: int, topic_id: int, head: PartHead, rows: Rows, done: Done) -> None:
        """Put a part on stable storage; `done` hears on the loop that it is, or why not."""

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
        """The records of parts, None for one that is not whole."""

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
        """Let parts go, some time. One that comes back with a crash is found superfluous by the next start."""
        self._worker.put(lambda: self._unlink(numbers))

    def drop(self, numbers: Sequence[int], done: Done) -> None:
        """Let parts go for good."""

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
            with suppress(OSError):  # a file too many is removed by the next start
                self._disk.unlink(self._layout.stage_path(number))

    def _tell(self, done: Done, error: OSError | None) -> None:
        self._runtime.from_thread(lambda: done(error))
