"""Scribes without processes: their work is done by workers of the runtime, on the disk that it was given.

What they do is what the processes do (`storage/wal/wal_process`, `storage/segments/segment_process`), in an order that
a seed decides; messages arrive in a later turn of the loop. One that is `lost` says and does nothing more, like a
process that was killed. One that is `drain`ed has lost its server: it writes what it was sent and says that this is
all.

While a scribe is `held`, its line takes nothing: that a server waits for it can be seen.
"""

from collections.abc import Callable, Sequence
from functools import partial

from driftq.storage.segments.segment_process import SegmentWork
from driftq.storage.wal.wal_process import LogWork
from driftq.system.clock import Clock
from driftq.system.disk import Disk
from driftq.system.lock import Lock
from driftq.system.runtime import Runtime, SerialWorker
from driftq.system.writer_process import WriterMessage
from driftq.testing.seeded_entropy import SeededEntropy


class ManualScribe:
    """A scribe, of either kind, once it has begun."""

    def __init__(self, runtime: Runtime, clock: Clock, disk: Disk) -> None:
        self._runtime = runtime
        self._clock = clock
        self._disk = disk
        self._hear: Callable[[WriterMessage], None] = lambda _: None
        self._gone: Callable[[], None] = lambda: None
        self._log: LogWork | None = None
        self._messages: SerialWorker[WriterMessage] | None = None
        self._segments: SegmentWork | None = None
        self._over = False
        self.pid = 0
        self.sent: Callable[[], None] = lambda: None
        self.held = False
        self._unsent: list[tuple[bytes, Sequence[bytes]]] = []

    @property
    def has_unsent(self) -> bool:
        """Whether the line has not taken everything."""
        return bool(self._unsent)

    def release(self) -> None:
        """Let the line take what it did not take."""
        self.held = False
        unsent, self._unsent = self._unsent, []
        for head, buffers in unsent:
            self.send(head, buffers)
        self.sent()

    def begin(
        self, work: str, head: bytes, lock: Lock, hear: Callable[[WriterMessage], None], gone: Callable[[], None]
    ) -> None:
        """Find out what it is. There is one process, and it has the lock."""
        self._hear, self._gone = hear, gone
        runtime = self._runtime
        if work.endswith(":write_log"):
            self._log = LogWork(self._Answers(self), self._disk, self._clock, head, runtime.worker, SeededEntropy(0))
            self._messages = runtime.worker(f"driftq-wal-{self._log.shard}", self._log.take)
        else:
            self._segments = SegmentWork(self._Answers(self), self._disk, head, runtime.worker)

    class _Answers:
        """Its end of the line."""

        def __init__(self, scribe: "ManualScribe") -> None:
            self._scribe = scribe

        def send(self, head: bytes, body: bytes = b"") -> None:
            """The loop hears it later."""
            self._scribe.tell(WriterMessage(head, memoryview(body)))

    def tell(self, message: WriterMessage) -> None:
        """To the loop."""
        self._runtime.from_thread(partial(self._heard, message))

    def _heard(self, message: WriterMessage) -> None:
        if not self._over:
            self._hear(message)

    def send(self, head: bytes, buffers: Sequence[bytes], *, urgent: bool = True) -> None:
        """To its workers."""
        if self._over:
            return
        if self.held:
            self._unsent.append((head, buffers))
            return
        message = WriterMessage(head, memoryview(b"".join(buffers)))
        if self._messages is not None:
            self._messages.put(message)
        elif self._segments is not None:
            self._segments.take(message)

    def lose(self) -> None:
        """It is killed: what it was sent stays undone, and the server hears that it is gone."""
        self._over = True
        self._runtime.soon(self._gone)

    @property
    def writes_log(self) -> bool:
        """Whether it is the writer of a shard."""
        return self._log is not None

    def drain(self) -> None:
        """Its server is killed: it does what it was sent, and ends."""
        if self._over:
            return
        self._unsent.clear()
        self.close()
        self._over = True

    def kill(self) -> None:
        """End it: the same as when it is lost."""
        self.lose()

    def leave(self) -> None:
        """Hear nothing more of it."""
        self._over = True

    def close(self) -> None:
        """It does what is left, and says so."""
        if self._messages is not None and self._log is not None:
            self._messages.close()
            self._log.close()
