"""`driftq append`: write lines of JSON to a topic, as fast as the server accepts them.

    read ──► groups of lines ──► checked and spliced ──► one write each, in order, by a producer of the client
             (this thread)       (this thread)           (its thread: the next group is checked meanwhile)

Lines are checked many at a time and never decoded into objects. Every write has its idempotency key, so a repeated
write is stored once. A line that cannot be stored ends the command with its number: all lines before it are written,
and none after it. So a group goes to the producer only when the previous group is written.
"""

import asyncio
import fcntl
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from driftq.cli.exits import CommandError, ExitCode
from driftq.cli.output import Json, note, progress, show
from driftq.cli.server_access import TopicName, served, translated
from driftq.system.clock import SystemClock

if TYPE_CHECKING:
    from driftq.client import Client
    from driftq.client.producer.producers import TopicProducer
    from driftq.client.transport.new_records import JsonLinesReader

_CHUNK_BYTES = 1 << 20
"""Maximum bytes per read, and so about the size of a write."""
_LINGER_S = 0.02
"""How long a write waits for more lines from a pipe, in seconds."""
_BATCH_MAX = 10_000


@served
def append(
    client: "Client",
    name: TopicName,
    file: Annotated[
        Path | None, typer.Argument(help="File with one JSON value per line. Default, and with `-`: standard input.")
    ] = None,
    *,
    tag: Annotated[str | None, typer.Option(help="Tag to put on every record.")] = None,
    node: Annotated[str | None, typer.Option(help="Node (origin) to put on every record.")] = None,
    batch: Annotated[
        int, typer.Option(min=1, max=_BATCH_MAX, help="Maximum number of records per write.")
    ] = _BATCH_MAX,
    create: Annotated[bool, typer.Option(help="Create the topic if it does not exist.")] = True,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Report lines that cannot be stored, and continue.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Append every line of a file, or of standard input, to a topic: one JSON value per line."""
    from driftq.client import ClientError

    if file == Path("-"):
        file = None
    if file is None and sys.stdin.isatty():
        note("reading JSON lines from the terminal; end with Ctrl-D")
    clock = SystemClock()
    began_ns = clock.monotonic_ns()
    with _opened(file) as (source, size), client.topic(name).producer() as out:
        job = Appending(out, tag, node, create=None if create else False, skip_bad=skip_bad)
        try:
            with progress(f"appending to {name}", size, in_bytes=True) as tell:
                asyncio.run(job.run(source, batch, tell))
        except ClientError as error:
            refusal = translated(error, client.url, has_key=client.has_key)
            raise CommandError(
                f"{refusal.message}; {job.records} records were written before that", refusal.code
            ) from None
        except OSError as error:
            so_far = f"{file or 'standard input'} cannot be read: {error.strerror}"
            raise CommandError(
                f"{so_far}; {job.records} records were written before that", ExitCode.BAD_INPUT
            ) from None
        except KeyboardInterrupt:
            so_far = f"interrupted; {job.records} records were written before that"
            raise CommandError(so_far, ExitCode.INTERRUPTED) from None
    show(job.report(name, (clock.monotonic_ns() - began_ns) / 1e9), as_json=as_json)
    if job.bad_lines:
        raise CommandError(job.failure or f"{job.bad_lines} lines were skipped", ExitCode.BAD_INPUT)


@contextmanager
def _opened(file: Path | None) -> Iterator[tuple[int, int | None]]:
    """Yield the file descriptor to read, and its size if that is known."""
    if file is None:
        with suppress(OSError, AttributeError):
            fcntl.fcntl(0, fcntl.F_SETPIPE_SZ, _CHUNK_BYTES)  # fewer and larger reads; only pipes have it
        yield 0, None
        return
    try:
        source = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}", ExitCode.BAD_INPUT) from None
    try:
        yield source, os.fstat(source).st_size
    finally:
        os.close(source)


class Lines(NamedTuple):
    """A group of whole lines, and the line number of the first."""

    first: int
    text: bytes


def is_ready(source: int) -> bool:
    """Whether something can be read without waiting. A file is always ready."""
    return bool(select.select([source], [], [], 0)[0])


async def wait_until_ready(source: int) -> None:
    """Wait until something can be read. Ctrl-C ends this wait, which it would not do during a read."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(source, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(source)


def read_piece(source: int) -> bytes:
    """Read up to 1 MiB, or less if the input pauses for 20 ms. Returns no bytes at the end of the input."""
    parts: list[bytes] = []
    size = 0
    while size < _CHUNK_BYTES and (not parts or select.select([source], [], [], _LINGER_S)[0]):
        part = os.read(source, _CHUNK_BYTES - size)
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


class LineGroups:
    """Splits input that arrives in pieces into groups of whole lines, at most `batch` lines each."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._rest = b""
        self._number = 1

    def feed(self, piece: bytes) -> Iterator[Lines]:
        """Yield the groups that this piece completes. An empty piece ends the input and completes the last line."""
        text = self._rest + piece
        end = text.rfind(b"\n") + 1 if piece else len(text)
        self._rest = text[end:]
        for lines in _cut(text[:end], self._batch):
            yield Lines(self._number, lines)
            self._number += lines.count(b"\n")


def _cut(text: bytes, batch: int) -> Iterator[bytes]:
    if text.count(b"\n") <= batch:
        if text:
            yield text
        return
    rows = text.split(b"\n")[:-1]
    for at in range(0, len(rows), batch):
        yield b"\n".join(rows[at : at + batch]) + b"\n"


class _Write(NamedTuple):
    """A write that is ready, and its lines; lines that were left out are empty."""

    lines: Lines
    records: "JsonLinesReader"


class Appending:
    """One run of `driftq append`: what has been written so far, and which lines could not be."""

    def __init__(
        self, out: "TopicProducer", tag: str | None, node: str | None, *, create: bool | None, skip_bad: bool
    ) -> None:
        self._out = out
        self._tag = tag
        self._node = node
        self._create = create
        self._skip_bad = skip_bad
        self._first_seq: int | None = None
        self._last_seq: int | None = None
        self.bad_lines = 0
        self.records = 0
        self.failure: str | None = None

    async def run(self, source: int, batch: int, tell: Callable[[int], None]) -> None:
        """Write all lines, or those before the first that cannot be stored. Raise ClientError."""
        read, writing = 0, None
        groups, piece = LineGroups(batch), b"."
        while piece and not self._is_over():
            if not is_ready(source):
                if writing is not None and not await writing:  # reports a refusal while no input comes
                    return
                writing = None
                await wait_until_ready(source)
            piece = read_piece(source)
            for lines in groups.feed(piece):
                body = self._checked(lines)
                if writing is not None and not await writing:
                    return
                read += len(lines.text)
                tell(read)
                writing = None if body is None else asyncio.create_task(asyncio.to_thread(self._write, body))
                await asyncio.sleep(0)  # lets the write start
                if self._is_over():
                    break
        if writing is not None:
            await writing

    def report(self, topic: str, seconds: float) -> dict[str, object]:
        """Return the totals of this run for the output."""
        facts = {"topic": topic, "records": self.records, "first_seq": self._first_seq}
        facts |= {"last_seq": self._last_seq, "bad_lines": self.bad_lines, "seconds": round(seconds, 3)}
        return facts | {"records_per_s": round(self.records / seconds)}

    def _is_over(self) -> bool:
        return self.failure is not None

    def _checked(self, lines: Lines) -> _Write | None:
        """Return a write of the lines that are JSON, or None if there are none."""
        try:
            return _Write(lines, self._spliced(lines.text))
        except ValueError:
            return self._mended(lines)

    def _mended(self, lines: Lines) -> _Write | None:
        """Return a write without the lines that are not JSON; without `--skip-bad`, only those before the first."""
        from msgspec import MsgspecError, Raw, json

        decode = json.Decoder(Raw).decode
        rows = lines.text.removesuffix(b"\n").split(b"\n")
        for at, row in enumerate(rows):
            try:
                if row.strip():
                    decode(row)
            except (MsgspecError, RecursionError) as error:
                rows[at] = b""
                if not self._go_on_after(lines.first + at, f"is not JSON: {error}"):
                    del rows[at:]
                    break
        text = b"\n".join(rows)
        return _Write(Lines(lines.first, text), self._spliced(text)) if text.strip() else None

    def _go_on_after(self, number: int, why: str) -> bool:
        """Report a line that cannot be stored. Return whether to continue (`--skip-bad`)."""
        self.bad_lines += 1
        if self._skip_bad:
            note(f"line {number} {why}")
        else:
            self.failure = f"line {number} {why}; all lines before it are written, none after it"
        return self._skip_bad

    def _spliced(self, text: bytes) -> "JsonLinesReader":
        from driftq.client.transport.new_records import JsonLinesReader

        return JsonLinesReader(text, tag=self._tag)

    def _write(self, body: _Write) -> bool:
        """Write a body, or the part of it that the server accepts. Return whether to continue. Raise ClientError."""
        from driftq.client import BadRequestError

        try:
            self._post(body.records)
        except BadRequestError:
            rows = enumerate(body.lines.text.removesuffix(b"\n").split(b"\n"), body.lines.first)
            return self._write_by_halves([(number, row) for number, row in rows if row.strip()])
        return True

    def _write_by_halves(self, rows: list[tuple[int, bytes]]) -> bool:
        """Find the lines that the server refuses by writing halves; all lines before a refused one are written."""
        from driftq.client import BadRequestError

        try:
            self._post(self._spliced(b"\n".join(row for _, row in rows)))
        except BadRequestError as error:
            if len(rows) == 1:
                return self._go_on_after(rows[0][0], f"was refused: {error.message}")
            middle = len(rows) // 2
            return self._write_by_halves(rows[:middle]) and self._write_by_halves(rows[middle:])
        return True

    def _post(self, records: "JsonLinesReader") -> None:
        seqs = self._out.append_lines(records, node=self._node, create=self._create).result()
        self.records += len(seqs)
        self._first_seq = seqs[0] if self._first_seq is None else self._first_seq
        self._last_seq = seqs[-1]
