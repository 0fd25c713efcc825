"""The interface of a shard to its writer, and the writer that is a thread of this process."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from driftq.storage.wal.wal_file import WalFiles
from driftq.storage.wal.wal_head import FileHead
from driftq.storage.wal.wal_writer import WalWriter
from driftq.storage.wal.writer_messages import Parcel, WriteReport
from driftq.system.clock import Clock
from driftq.system.entropy import Entropy
from driftq.system.runtime import Runtime, SerialWorker


class Writing(Protocol):
    """The interface of a shard to its writer."""

    @property
    def synced_to(self) -> int:
        """Return a place in the log up to which everything is on stable storage."""
        ...

    @property
    def pid(self) -> int | None:
        """Return the process id of the writer, or None if it is a thread."""
        ...

    @property
    def handed_over(self) -> bool:
        """Whether everything that was put survives the death of this process."""
        ...

    def put(self, batch: Sequence[Parcel]) -> None:
        """Queue a batch for the writer."""
        ...

    def leave(self) -> None:
        """End without waiting for what is queued."""
        ...

    def close(self) -> WriteReport | None:
        """Write and sync what is queued, and end. Returns the last report, if there is one."""
        ...


class WriterThread:
    """A writer that runs on a thread of this process."""

    pid = None

    def __init__(
        self,
        runtime: Runtime,
        clock: Clock,
        files: WalFiles,
        head: FileHead,
        settle: Callable[[WriteReport], None],
        entropy: Entropy,
    ) -> None:
        self._writer = WalWriter(
            clock, files, head, lambda report: runtime.from_thread(partial(settle, report)), runtime.worker, entropy
        )
        self._worker: SerialWorker[Sequence[Parcel]] = runtime.worker(f"driftq-wal-{head.shard}", self._writer.handle)

    @property
    def synced_to(self) -> int:
        """Return the synced end of the log, as the thread has it."""
        return self._writer.synced_to

    @property
    def handed_over(self) -> bool:
        """Return True: the thread has everything. It dies with the process, so the next start cannot rely on it."""
        return True

    def put(self, batch: Sequence[Parcel]) -> None:
        """Pass all submissions of the batch to the thread at once."""
        self._worker.put(batch)

    def leave(self) -> None:
        """Leave the thread running: it ends with the process."""

    def close(self) -> WriteReport:
        """End the thread. Callbacks on the loop report the remaining results."""
        self._worker.close()
        return self._writer.close()
