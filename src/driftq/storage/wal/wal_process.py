"""A shard's writer in a process of its own: parcels over, reports back.

A message to it is the parcels of one loop turn: what each is, and all their frames as one body. It answers at once
where somebody waits, else with what it has to say anyway: behind the next sync, or so many bytes. It rests for a moment
behind what nobody waits for, and is woken for whoever does.

A server that stops says so with a message without parcels. Of a server that died the writer writes what it was sent,
syncs it, says at the end of the log that it is complete (kind DRAINED), and ends. The server shows and acks a `disk`
write only when the line has taken its whole message, so nothing that anybody saw is missing then
(`docs/decisions/0018-a-drained-log-has-no-hole.md`). A message that was sent in part is nothing.
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
from driftq.system.writer_process import Answers, Desk, Scribe, WriterMessage

_TOLD_BYTES, _TOLD_FRAMES = 1 << 18, 512
"""So much is written before it is told of although nobody waits for it: what is under way counts against the queue."""

_REST_S = 0.0005
"""What nobody waits for may collect so long: a loop that wakes its writer in every turn has less time for the rest."""


class _Begin(Struct, array_like=True):
    """Where the shard's files are."""

    data_dir: str
    name: str
    file_bytes: int
    head: FileHead
    keeps_reserve: bool


class _Parcel(Struct, array_like=True, gc=False):
    """A submission without its frames, and with them on the other side."""

    number: int
    generation: int
    size: int
    frame_count: int
    sync: bool
    prompt: bool
    uses_reserve: bool
    is_mark: bool
    shrinks: bool
    late: tuple[int, int] | None = None
    frames: Sequence[bytes] = ()


_encode = Encoder().encode
_parcels = Decoder(list[_Parcel]).decode
_report = Decoder(WriteReport).decode


class WalScribe:
    """The loop's side."""

    def __init__(
        self,
        scribe: Scribe,
        lock: Lock,
        files: WalFiles,
        head: FileHead,
        settle: Callable[[WriteReport], None],
        gone: Callable[[], None],
        sent: Callable[[], None],
    ) -> None:
        self._scribe = scribe
        self.pid = scribe.pid
        self._settle = settle
        self._last: WriteReport | None = None
        self.synced_to = 0
        """As the last report says."""
        scribe.sent = sent
        begin = _Begin(files.data_dir, files.name, files.file_bytes, head, files.keeps_reserve)
        scribe.begin(f"{__name__}:{write_log.__name__}", _encode(begin), lock, self._hear, gone)

    def _hear(self, message: WriterMessage) -> None:
        self._last = _report(message.head)
        self.synced_to = self._last.synced_to
        self._settle(self._last)

    def put(self, batch: Sequence[Parcel]) -> None:
        """One message, however many submissions."""
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
                s.shrinks,
                s.late,
            )
            for s in batch
        ]
        frames = [frame for s in batch for frame in s.frames]
        self._scribe.send(_encode(parcels), frames, urgent=any(map(_is_urgent, batch)))

    def leave(self) -> None:
        """Expect nothing more of it; it writes what it was sent, if it ever can."""
        self._scribe.leave()

    @property
    def handed_over(self) -> bool:
        """Whether the line has taken everything that was put."""
        return not self._scribe.has_unsent

    def close(self) -> WriteReport | None:
        """Have it write and sync what it has, and end."""
        self._scribe.send(_encode(()), ())
        self._scribe.close()
        return self._last


class LogWork:
    """The work of a writer: messages in, reports out where they are worth one."""

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
        """Does nobody wait for what was written last?"""
        self._left = False
        """Whether the server has said that it stops."""

    def take(self, messages: list[WriterMessage]) -> float | None:
        """Write what came; in how many seconds there is something to do although nothing comes."""
        jobs = [_unpacked(message) for message in messages]
        self._left = not jobs[-1] if jobs else self._left
        self.may_rest = not any(_is_urgent(parcel) for job in jobs for parcel in job)
        return self._writer.handle(jobs)

    def close(self) -> None:
        """Sync what is written, and say so: to the server, or if that died, to the next one."""
        self._tell(self._writer.close(drained=not self._left))

    def _tell(self, report: WriteReport) -> None:
        """What somebody waits for, and something now and then."""
        counters = report.counters
        many = counters.bytes - self._told_bytes > _TOLD_BYTES or counters.frames - self._told_frames > _TOLD_FRAMES
        if report.prompt or many:
            self._told_bytes, self._told_frames = counters.bytes, counters.frames
            self._answers.send(_encode(report))


def write_log(desk: Desk, head: bytes) -> None:
    """The life of a writer: in its own process, until its server has left."""
    work = LogWork(desk, OsDisk(), SystemClock(), head, ThreadWorker, SystemEntropy())
    wait_s: float | None = None
    while (messages := desk.receive(wait_s)) is not None:
        wait_s = work.take(messages)
        if wait_s is not None and work.may_rest:
            desk.rest(min(_REST_S, wait_s))
            wait_s = max(0.0, wait_s - _REST_S)
    work.close()


def _is_urgent(parcel: Parcel) -> bool:
    """Does anybody wait for it?"""
    return parcel.sync or parcel.prompt


def _unpacked(message: WriterMessage) -> list[_Parcel]:
    """The parcels of one turn, each with its part of the body."""
    parcels, place = _parcels(message.head), 0
    for parcel in parcels:
        if parcel.size:
            parcel.frames = (message.body[place : place + parcel.size],)  # type: ignore[assignment]
            place += parcel.size
    return parcels
