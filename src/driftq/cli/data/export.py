"""`driftq export`: write a topic to a file of JSON lines, an Arrow stream or a Parquet file.

Pages come from the server as Arrow; the next page is fetched while the current one is written. A JSON line is a record
as the API shows it. Ranges of lost records are reported as lines of their own, or in the metadata of the file. A named
file appears under its name only when it is complete.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, BinaryIO, Protocol

import typer
from msgspec import json

from driftq.cli.exits import CommandError, ExitCode
from driftq.cli.output import Json, note, progress, show
from driftq.cli.server_access import KeyFile, TopicName, Url, connected
from driftq.system.clock import SystemClock

if TYPE_CHECKING:
    import pyarrow

_PAGE_RECORDS = 100_000
_COLUMNS = ["seq", "ts", "node", "tag", "meta", "data"]


class Format(StrEnum):
    """Formats in which records can be exported and imported."""

    NDJSON = "ndjson"
    ARROW = "arrow"
    PARQUET = "parquet"


def format_of(path: Path | None, given: Format | None) -> Format:
    """Return `given` if set, else the format that the file's suffix names, else NDJSON."""
    if given is not None:
        return given
    suffix = "" if path is None else path.suffix.lower()
    return {".arrow": Format.ARROW, ".arrows": Format.ARROW, ".parquet": Format.PARQUET}.get(suffix, Format.NDJSON)


FormatOption = Annotated[
    Format | None,
    typer.Option("--format", "-f", help="Format of the file. Default: by its suffix.", show_default=False),
]


def export(
    name: TopicName,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="File to write. Default: standard output.")
    ] = None,
    form: FormatOption = None,
    from_seq: Annotated[int, typer.Option(min=0, help="Start after this seq (exclusive).")] = 0,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Write every record of a topic to a file: NDJSON, Arrow or Parquet."""
    chosen = format_of(output, form)
    if output is None and chosen is not Format.NDJSON and sys.stdout.isatty():
        raise CommandError(f"{chosen} is binary and standard output is a terminal; name a file with -o", ExitCode.USAGE)
    clock = SystemClock()
    began_ns = clock.monotonic_ns()
    with connected(url, key_file) as client, _opened(output) as file:
        topic = client.topic(name)
        head = topic.info().head_seq
        with progress(f"exporting {name}", head) as tell:
            pages = topic.arrow_pages(from_seq, page_records=_PAGE_RECORDS)
            done = asyncio.run(_write(pages, _WRITERS[chosen](file), tell))
    seconds = (clock.monotonic_ns() - began_ns) / 1e9
    facts = {
        "topic": name,
        "format": str(chosen),
        "records": done.records,
        "gaps": len(done.gaps),
        "last_seq": done.seq,
    }
    facts |= {"seconds": round(seconds, 3), "records_per_s": round(done.records / seconds)}
    if output is not None:
        show({"file": str(output), **facts}, as_json=as_json)
    if done.gaps:
        note(f"{len(done.gaps)} ranges of records were lost earlier; the export lists them")


class _Done:
    """Counts the records and gaps that an export has written, and its position."""

    def __init__(self) -> None:
        self.records = 0
        self.seq = 0
        self.gaps: list[bytes] = []


class _Writer(Protocol):
    """Writes the pages of a topic to a file in one format."""

    def page(self, table: "pyarrow.Table", gap: bytes) -> None:
        """Write one page. `gap` is the JSON of the tombstone that comes before the page, or empty."""
        ...

    def close(self, gaps: Sequence[bytes]) -> None:
        """Finish the file. `gaps` are the tombstones of the whole export, as JSON."""
        ...


async def _write(pages: "Iterable[pyarrow.Table]", writer: _Writer, tell: Callable[[int], None]) -> _Done:
    """Write all pages. A thread fetches the next page while this one is written."""
    done = _Done()
    left = iter(pages)
    coming = asyncio.create_task(asyncio.to_thread(next, left, None))
    while (page := await coming) is not None:
        coming = asyncio.create_task(asyncio.to_thread(next, left, None))
        await asyncio.sleep(0)  # lets the fetch of the next page start
        facts = page.schema.metadata
        gap = facts.get(b"tombstone", b"")
        if gap:
            done.gaps.append(gap)
        writer.page(page.select(_COLUMNS).replace_schema_metadata(None), gap)
        done.records += page.num_rows
        done.seq = int(facts[b"next_from_seq"])
        tell(done.seq)
    writer.close(done.gaps)
    return done


class _Lines:
    """Writes records as the API shows them, one per line."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def page(self, table: "pyarrow.Table", gap: bytes) -> None:
        """Write one line per record, after a line for the gap."""
        if gap:
            self._file.write(gap + b"\n")
        if table.num_rows:
            self._file.write("\n".join(_lines(table)).encode())
            self._file.write(b"\n")

    def close(self, gaps: Sequence[bytes]) -> None:
        """Do nothing: the gaps are already among the lines."""


def _lines(table: "pyarrow.Table") -> Iterator[str]:
    seqs, times = table["seq"].to_pylist(), table["ts"].cast("int64").to_pylist()
    columns = [_labelled(table[name], name) for name in ("node", "tag", "meta")]
    for seq, ts, node, tag, meta, data in zip(seqs, times, *columns, table["data"].to_pylist(), strict=True):
        yield f'{{"$seq":{seq},"$ts":{ts}{node}{tag}{meta},"data":{data}}}'


def _labelled(column: Any, name: str) -> list[str]:
    """Return the JSON members of one column, each with its comma and name; empty where a record has no value.

    `meta` is JSON already; `node` and `tag` are plain text and are encoded here.
    """
    if column.null_count == len(column):
        return [""] * len(column)
    if name == "meta":
        return ["" if value is None else f',"meta":{value}' for value in column.to_pylist()]
    return ["" if value is None else f',"${name}":{json.encode(value).decode()}' for value in column.to_pylist()]


class _Arrow:
    """Writes all records to one Arrow stream."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._writer: Any = None

    def page(self, table: "pyarrow.Table", gap: bytes) -> None:
        """Append the page's batches to the stream; a gap becomes an empty batch with metadata."""
        import pyarrow as pa

        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._file, table.schema)
        self._writer.write_table(table)
        if gap:
            # The schema's metadata is written before the first page, so a later gap can only go into the metadata of a
            # batch.
            empty = pa.RecordBatch.from_pylist([], schema=table.schema)
            self._writer.write_batch(empty, custom_metadata={"driftq.tombstone": gap.decode()})

    def close(self, gaps: Sequence[bytes]) -> None:
        """End the Arrow stream, if one was started."""
        if self._writer is not None:
            self._writer.close()


class _Parquet:
    """Writes one Parquet file, with the columns and encodings of the cold tier."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._writer: Any = None

    def page(self, table: "pyarrow.Table", gap: bytes) -> None:
        """Write the page as one row group."""
        import pyarrow.parquet as pq

        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._file,
                table.schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=False,
                column_encoding={"seq": "DELTA_BINARY_PACKED", "ts": "DELTA_BINARY_PACKED"},
                write_statistics=["seq", "ts", "node", "tag"],
                store_schema=False,
            )
        if table.num_rows:
            self._writer.write_table(table, row_group_size=_PAGE_RECORDS)

    def close(self, gaps: Sequence[bytes]) -> None:
        """Put the gaps into the footer and close the file."""
        if self._writer is not None:
            self._writer.add_key_value_metadata({"driftq.tombstones": (b"[" + b",".join(gaps) + b"]").decode()})
            self._writer.close()


_WRITERS: dict[Format, Callable[[IO[bytes]], _Writer]] = {
    Format.NDJSON: _Lines,
    Format.ARROW: _Arrow,
    Format.PARQUET: _Parquet,
}


@contextmanager
def _opened(path: Path | None) -> Iterator[BinaryIO]:
    """Open the output: standard output, or a file that gets its name only when it is complete.

    A path that exists but is not a regular file, such as a pipe or a device, is opened and written directly, because a
    rename would replace it. A symbolic link is followed and kept.
    """
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
            return
        with _finished(path.resolve()) as file:
            yield file
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}") from None


@contextmanager
def _finished(path: Path) -> Iterator[BinaryIO]:
    unfinished = path.with_name(f"{path.name}.part")
    try:
        with unfinished.open("wb") as file:
            yield file
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
