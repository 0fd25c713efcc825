"""The way from a shard to its writer, and the writer that is a thread of this process."""

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
    """The way to the writer."""

    @property
    def synced_to(self) -> int:
        """A place in the log up to which everything is known to be on stable storage."""
        ...

    @property
    def pid(self) -> int | None:
        """The process that writes; None for a thread."""
        ...

    @property
    def handed_over(self) -> bool:
        """Whether the death of this process alone would lose nothing of what was put."""
        ...

    def put(self, batch: Sequence[Parcel]) -> None:
        """Have it written."""
        ...

    def leave(self) -> None:
        """End without waiting for what is queued."""
        ...

    def close(self) -> WriteReport | None:
        """Write and sync what is queued, and end. The last word, if there is one."""
        ...


class WriterThread:
    """A writer on a thread."""

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
        """As the thread has it."""
        return self._writer.synced_to

    @property
    def handed_over(self) -> bool:
        """True: the thread has it. It dies with the process, so a start after that proves nothing."""
        return True

    def put(self, batch: Sequence[Parcel]) -> None:
        """One put, however many submissions."""
        self._worker.put(batch)

    def leave(self) -> None:
        """Leave the thread where it is: it ends with the process."""

    def close(self) -> WriteReport:
        """End the thread. The loop hears what is left through its callbacks."""
        self._worker.close()
        return self._writer.close()
