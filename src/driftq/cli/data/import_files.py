"""`driftq import FILE…`: write records from JSON lines, Arrow or Parquet files to a topic, each file exactly once.

A file is cut into batches, always at the same places. The writer is named after a hash of the file's content, and each
batch is staged and committed under its number, and a topic remembers the last batch of every writer forever. So an
interrupted import continues where it stopped, and a repeated import writes nothing.

Tags, nodes and metas are kept; the topic assigns its own seqs and times. In a table without a column `data`, each row
becomes the data of one record, as a JSON object.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import DecodeError, Raw, Struct, ValidationError, field, json
from xxhash import xxh3_64

from driftq.cli.data.export import Format, FormatOption, format_of
from driftq.cli.exits import CommandError, ExitCode
from driftq.cli.output import Json, progress, show_rows
from driftq.cli.server_access import KeyFile, Url, complete_topic, connected

if TYPE_CHECKING:
    import pyarrow

    from driftq.client import Client

_BATCH_RECORDS = 50_000
_PART_BYTES, _PART_RECORDS = 8 << 20, 10_000
"""Size limits of one staged part: the server's defaults."""
_CHUNK = 1 << 20
_COLUMNS = ("data", "tag", "node", "meta")


class _Line(Struct):
    """A record of a JSON line, with field names as the API shows them (`$tag`) or as it accepts them (`tag`)."""

    data: Raw
    tag: str | None = None
    node: str | None = None
    meta: Raw = Raw()
    shown_tag: str | None = field(default=None, name="$tag")
    shown_node: str | None = field(default=None, name="$node")
    type: str | None = field(default=None, name="$type")


class _Gap(Struct):
    """Decodes only the type of a line, to recognise tombstones."""

    type: str = field(name="$type")


_line = json.Decoder(_Line)
_gap = json.Decoder(_Gap)


def import_files(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="NDJSON, Arrow or Parquet files.")],
    *,
    topic: Annotated[
        str, typer.Option("--topic", "-t", help="Topic to write to; created if missing.", autocompletion=complete_topic)
    ],
    form: FormatOption = None,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Write the records of files to a topic, each file once. An interrupted import continues where it stopped."""
    with connected(url, key_file) as client:
        _make_topic(client, topic)
        rows = [_import(client, topic, path, format_of(path, form)) for path in files]
    show_rows(rows, as_json=as_json)


def _make_topic(client: "Client", topic: str) -> None:
    from driftq.client import NotFoundError

    try:
        client.topic(topic).info()
    except NotFoundError:
        client.topic(topic).create()


def _import(client: "Client", topic: str, path: Path, form: Format) -> dict[str, object]:
    from driftq.client import BadRequestError

    if path == Path("-") or (path.exists() and not path.is_file() and not path.is_dir()):
        what = (
            f"{path} is not a regular file, and an import reads its input twice; save it first, or pipe plain values to"
        )
        raise CommandError(f"{what} `driftq append`", ExitCode.BAD_INPUT)
    try:
        size = path.stat().st_size
        with progress(f"importing {path.name}", size, in_bytes=True) as tell:
            return _imported(client, topic, path, form, tell)
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror or error}", ExitCode.BAD_INPUT) from None
    except BadRequestError as error:
        raise CommandError(f"the server refused {path}: {error.message}", ExitCode.BAD_INPUT) from None


def _imported(client: "Client", topic: str, path: Path, form: Format, tell: Callable[[int], None]) -> dict[str, object]:
    handle = client.topic(topic)
    writer = f"import-{_fingerprint(path, form)}"
    done = _last_batch(client, topic, writer)
    records = repeated = 0
    size = path.stat().st_size
    for number, (table, read) in enumerate(_batches(path, form)):
        if number <= done:
            repeated += table.num_rows
            continue
        from driftq.client import Part

        parts = []
        for part, body in enumerate(_bodies(table)):
            handle.stage(body, writer=writer, batch=number, part=part)
            parts.append(Part(part, 0, 1))
        if parts:
            handle.commit(writer=writer, batch=number, parts=parts)
        records += table.num_rows
        tell(min(read, size))
    return {"file": str(path), "topic": topic, "format": str(form), "records": records, "there_before": repeated}


def _last_batch(client: "Client", topic: str, writer: str) -> int:
    from driftq.client import NotFoundError

    try:
        return int(client.topic(topic).writer(writer).last_batch)
    except NotFoundError:
        return -1


def _fingerprint(path: Path, form: Format) -> str:
    """Return a hash of the file's content and of how it is cut into batches; the path does not matter."""
    digest = xxh3_64(f"{form}:{_BATCH_RECORDS}".encode())
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return str(digest.hexdigest())


def _batches(path: Path, form: Format) -> "Iterator[tuple[pyarrow.Table, int]]":
    """Yield tables of records, each with the number of bytes of the file that have been read."""
    if form is Format.NDJSON:
        yield from _from_lines(path)
        return
    import pyarrow as pa

    try:
        reader = _parquet(path) if form is Format.PARQUET else _arrow(path)
        for table, read in reader:
            if table.num_rows:
                yield as_records(table), read
    except pa.ArrowInvalid as error:
        raise CommandError(f"{path} is not a valid {form} file: {error}", ExitCode.BAD_INPUT) from None


def _parquet(path: Path) -> "Iterator[tuple[pyarrow.Table, int]]":
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    chosen = (
        [name for name in _COLUMNS if name in file.schema_arrow.names] if "data" in file.schema_arrow.names else None
    )
    rows, total = 0, max(1, file.metadata.num_rows)
    for batch in file.iter_batches(_BATCH_RECORDS, columns=chosen):
        rows += batch.num_rows
        yield pa.Table.from_batches([batch]), path.stat().st_size * rows // total


def _arrow(path: Path) -> "Iterator[tuple[pyarrow.Table, int]]":
    import pyarrow as pa

    with pa.memory_map(str(path)) as source:
        try:
            batches: Any = pa.ipc.open_stream(source)
        except pa.ArrowInvalid:
            file = pa.ipc.open_file(source)
            batches = (file.get_batch(number) for number in range(file.num_record_batches))
        for batch in batches:
            for first in range(0, batch.num_rows, _BATCH_RECORDS):
                yield pa.Table.from_batches([batch.slice(first, _BATCH_RECORDS)]), source.tell()


def as_records(table: "pyarrow.Table") -> "pyarrow.Table":
    """Return the table with the columns of records. Without a column `data`, each row is the data of one record."""
    from driftq.client.topics.arrow_tables import records_of

    names = table.schema.names
    return records_of(table.select([name for name in _COLUMNS if name in names]) if "data" in names else table)


def _from_lines(path: Path) -> "Iterator[tuple[pyarrow.Table, int]]":
    columns = _Columns()
    read = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            read += len(line)
            if line.strip():
                columns.add(path, number, line)
            if len(columns.data) >= _BATCH_RECORDS:
                yield columns.table(), read
                columns = _Columns()
    if columns.data:
        yield columns.table(), read


class _Columns:
    """Collects the records of JSON lines, as columns."""

    def __init__(self) -> None:
        self.data: list[str] = []
        self._tag: list[str | None] = []
        self._node: list[str | None] = []
        self._meta: list[str | None] = []

    def add(self, path: Path, number: int, line: bytes) -> None:
        """Add the record of one line; a tombstone line is skipped. Raise CommandError if the line is not a record."""
        try:
            record = _line.decode(line)
            data, meta = bytes(record.data).decode(), bytes(record.meta).decode()
        except (DecodeError, ValidationError, UnicodeDecodeError, RecursionError) as error:
            if _is_gap(line):
                return
            raise CommandError(
                f"line {number} of {path} is not a record: {error}; use `driftq append` for plain values",
                ExitCode.BAD_INPUT,
            ) from None
        self.data.append(data)
        self._tag.append(record.tag if record.tag is not None else record.shown_tag)
        self._node.append(record.node if record.node is not None else record.shown_node)
        self._meta.append(meta if meta not in ("", "null") else None)

    def table(self) -> "pyarrow.Table":
        """Return the collected records as an Arrow table."""
        import pyarrow as pa

        columns = {"data": self.data, "tag": self._tag, "node": self._node, "meta": self._meta}
        return pa.table({name: pa.array(values, pa.utf8()) for name, values in columns.items()})


def _is_gap(line: bytes) -> bool:
    try:
        return _gap.decode(line).type == "tombstone"
    except (DecodeError, ValidationError, UnicodeDecodeError, RecursionError):
        return False


def _bodies(table: "pyarrow.Table") -> Iterator[bytes]:
    """Yield Arrow streams that are small enough for one staged part each."""
    import pyarrow as pa

    rows = max(1, min(_PART_RECORDS, _PART_BYTES * table.num_rows // max(table.nbytes, 1)))
    for batch in table.combine_chunks().to_batches(max_chunksize=rows):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        yield sink.getvalue().to_pybytes()
