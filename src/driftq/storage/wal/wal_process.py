"""The writer of a shard in a process of its own: it receives parcels and sends reports.

One message to the writer has the parcels of one loop turn: their descriptions, and all their frames as one body. The
writer answers at once if a caller waits. Otherwise it reports with the next sync, or after 256 KiB or 512 frames. After
parcels that no caller waits for, it pauses for up to 0.5 ms, and an urgent message wakes it.

A server that stops sends a message without parcels. If the server dies, the writer writes and syncs everything that it
was sent, marks the log as complete with a last frame (kind DRAINED), and ends. The server shows and acks a `disk` write
only when the socket has taken its whole message, so the log then contains everything that a caller saw
(`docs/decisions/0018-a-drained-log-has-no-hole.md`). A message that was sent in part is ignored.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from driftq.storage.layout import Layout
from driftq.storage.wal.wal_file import WalFiles
from driftq.storage.wal.wal_head import FileHead
from driftq.storage.wal.wal_writer import WalWriter
from driftq.storage.wal.writer_messages import Parcel, WriteReport
from driftq.system.clock import Clock, SystemClock
from driftq.system.disk import Disk, OsDisk
from driftq.system.entropy import Entropy, SystemEntropy
from driftq.system.lock import Lock
from driftq.system.runtime import Handle, SerialWorker, ThreadWorker
from driftq.system.writer_process import Answers, ServerLine, WriterMessage, WriterProcess

_TOLD_BYTES, _TOLD_FRAMES = 1 << 18, 512
"""A report is sent after this many bytes or frames even if no caller waits: unreported writes fill the queue."""

_REST_S = 0.0005
"""Pause in seconds after writes that no caller waits for: waking the writer in every turn would slow the loop."""


class _Begin(Struct, array_like=True):
    """First message to the writer: the files of the shard."""

    data_dir: str
    name: str
    file_bytes: int
    head: FileHead
    keeps_reserve: bool


class _Parcel(Struct, array_like=True, gc=False):
    """A submission as it is sent, without its frames. The writer fills them in from the body of the message."""

    number: int
    generation: int
    size: int
    frame_count: int
    sync: bool
    prompt: bool
    uses_reserve: bool
    is_mark: bool
    in_place: bool
    shrinks: bool
    late: tuple[int, int] | None = None
    frames: Sequence[bytes] = ()


_encode = Encoder().encode
_parcels = Decoder(list[_Parcel]).decode
_report = Decoder(WriteReport).decode


class WalProcess:
    """The server's side of a writer process."""

    def __init__(
        self,
        writer_process: WriterProcess,
        lock: Lock,
        files: WalFiles,
        head: FileHead,
        settle: Callable[[WriteReport], None],
        gone: Callable[[], None],
        sent: Callable[[], None],
    ) -> None:
        self._writer_process = writer_process
        self.pid = writer_process.pid
        self._settle = settle
        self._last: WriteReport | None = None
        self.synced_to = 0
        """Synced end of the log, from the last report."""
        writer_process.sent = sent
        begin = _Begin(files.data_dir, files.name, files.file_bytes, head, files.keeps_reserve)
        writer_process.begin(f"{__name__}:{write_log.__name__}", _encode(begin), lock, self._hear, gone)

    def _hear(self, message: WriterMessage) -> None:
        self._last = _report(message.head)
        self.synced_to = self._last.synced_to
        self._settle(self._last)

    def put(self, batch: Sequence[Parcel]) -> None:
        """Send all submissions of the batch as one message."""
        parcels = [
            _Parcel(
                s.number,
                s.generation,
                s.size,
                s.frame_count,
                s.sync,
                s.prompt,
                s.uses_reserve,
                s.is_mark,
                s.in_place,
                s.shrinks,
                s.late,
            )
            for s in batch
        ]
        frames = [frame for s in batch for frame in s.frames]
        self._writer_process.send(_encode(parcels), frames, urgent=any(map(_is_urgent, batch)))

    def leave(self) -> None:
        """Stop waiting for the writer. It writes what it was sent, if it can."""
        self._writer_process.leave()

    @property
    def handed_over(self) -> bool:
        """Whether the socket has taken everything that was put."""
        return not self._writer_process.has_unsent

    def close(self) -> WriteReport | None:
        """Make the writer write and sync what it has, and end. Returns its last report."""
        self._writer_process.send(_encode(()), ())
        self._writer_process.close()
        return self._last


class LogWork:
    """The work of a writer process: takes messages, and sends a report when one is needed."""

    def __init__(
        self,
        answers: Answers,
        disk: Disk,
        clock: Clock,
        head: bytes,
        make_worker: Callable[[str, Handle[int]], SerialWorker[int]],
        entropy: Entropy,
    ) -> None:
        begin = Decoder(_Begin).decode(head)
        self.shard = begin.head.shard
        self._answers = answers
        self._told_bytes = self._told_frames = 0
        layout = Layout(disk, begin.data_dir)
        files = WalFiles(layout, begin.name, begin.file_bytes, keeps_reserve=begin.keeps_reserve)
        self._writer = WalWriter(clock, files, begin.head, self._tell, make_worker, entropy)
        self.may_rest = False
        """Whether no caller waits for the last writes."""
        self._left = False
        """Whether the server has announced that it stops."""

    def take(self, messages: list[WriterMessage]) -> float | None:
        """Write these messages. Returns the seconds until the writer has work even without a message, or None."""
        jobs = [_unpacked(message) for message in messages]
        self._left = not jobs[-1] if jobs else self._left
        self.may_rest = not any(_is_urgent(parcel) for job in jobs for parcel in job)
        return self._writer.handle(jobs)

    def close(self) -> None:
        """Sync what is written and send the last report. If the server died, mark the log as complete."""
        self._tell(self._writer.close(drained=not self._left))

    def _tell(self, report: WriteReport) -> None:
        """Send a report if a caller waits for it, or if much was written since the last one."""
        counters = report.counters
        many = counters.bytes - self._told_bytes > _TOLD_BYTES or counters.frames - self._told_frames > _TOLD_FRAMES
        if report.prompt or many:
            self._told_bytes, self._told_frames = counters.bytes, counters.frames
            self._answers.send(_encode(report))


def write_log(server_line: ServerLine, head: bytes) -> None:
    """Run a log writer in its own process until the server has ended."""
    work = LogWork(server_line, OsDisk(), SystemClock(), head, ThreadWorker, SystemEntropy())
    wait_s: float | None = None
    while (messages := server_line.receive(wait_s)) is not None:
        wait_s = work.take(messages)
        if wait_s is not None and work.may_rest:
            server_line.rest(min(_REST_S, wait_s))
            wait_s = max(0.0, wait_s - _REST_S)
    work.close()


def _is_urgent(parcel: Parcel) -> bool:
    """Whether a caller waits for this parcel."""
    return parcel.sync or parcel.prompt


def _unpacked(message: WriterMessage) -> list[_Parcel]:
    """Return the parcels of one message, each with its part of the body."""
    parcels, place = _parcels(message.head), 0
    for parcel in parcels:
        if parcel.size:
            parcel.frames = (message.body[place : place + parcel.size],)  # type: ignore[assignment]
            place += parcel.size
    return parcels
