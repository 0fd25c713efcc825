"""Fake writer processes: workers of the runtime do their work, on the disk that the runtime was given.

They run the same code as the processes (`storage/wal/wal_process`, `storage/segments/segment_process`), in an order
that a seed decides. Messages arrive in a later turn of the loop. After `lose`, the fake does and sends nothing more,
like a killed process. After `drain`, its server is gone: it writes what it was sent, and reports that this was all.

While a fake is `held`, it accepts no messages, so that tests can see the server wait for it.
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


class ManualWriterProcess:
    """A fake writer process, for the log or for segments; `begin` decides which."""

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
        """Whether some messages are not accepted yet."""
        return bool(self._unsent)

    def release(self) -> None:
        """Accept the messages that had to wait, and all later ones."""
        self.held = False
        unsent, self._unsent = self._unsent, []
        for head, buffers in unsent:
            self.send(head, buffers)
        self.sent()

    def begin(
        self, work: str, head: bytes, lock: Lock, hear: Callable[[WriterMessage], None], gone: Callable[[], None]
    ) -> None:
        """Start as a log writer or as a segment writer. The lock is not used: there is only one process."""
        self._hear, self._gone = hear, gone
        runtime = self._runtime
        if work.endswith(":write_log"):
            self._log = LogWork(self._Answers(self), self._disk, self._clock, head, runtime.worker, SeededEntropy(0))
            self._messages = runtime.worker(f"driftq-wal-{self._log.shard}", self._log.take)
        else:
            self._segments = SegmentWork(self._Answers(self), self._disk, head, runtime.worker)

    class _Answers:
        """Sends answers of the writer to the server."""

        def __init__(self, writer_process: "ManualWriterProcess") -> None:
            self._writer_process = writer_process

        def send(self, head: bytes, body: bytes = b"") -> None:
            """Send a message that the loop receives in a later turn."""
            self._writer_process.tell(WriterMessage(head, memoryview(body)))

    def tell(self, message: WriterMessage) -> None:
        """Pass a message of the writer to the loop."""
        self._runtime.from_thread(partial(self._heard, message))

    def _heard(self, message: WriterMessage) -> None:
        if not self._over:
            self._hear(message)

    def send(self, head: bytes, buffers: Sequence[bytes], *, urgent: bool = True) -> None:
        """Send a message of the server to the writer's workers."""
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
        """Kill the writer: what it was sent stays undone, and the server is notified."""
        self._over = True
        self._runtime.soon(self._gone)

    @property
    def writes_log(self) -> bool:
        """Whether this is the log writer of a shard."""
        return self._log is not None

    def drain(self) -> None:
        """Let the writer do what it was sent after its server was killed, and end."""
        if self._over:
            return
        self._unsent.clear()
        self.close()
        self._over = True

    def kill(self) -> None:
        """Kill the writer, with the same effect as `lose`."""
        self.lose()

    def leave(self) -> None:
        """Ignore all further messages of the writer."""
        self._over = True

    def close(self) -> None:
        """Let a log writer finish its work and report that."""
        if self._messages is not None and self._log is not None:
            self._messages.close()
            self._log.close()
