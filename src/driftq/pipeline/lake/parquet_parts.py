"""Writes records to Parquet files on executors, and reports the files to the driver, which commits them.

    Arrow batches → by topic and day → files, written at 262,144 rows or 64 MiB → one `ParquetPart` each

This code is pickled by value to executors, which may have only the packages that Spark needs. So it imports no others.

Invariant: a file's name is new in every attempt of a task, so two attempts never write the same file. No process
deletes a file: a part that no commit names is not in any table.
"""

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from driftq.model.names import is_broker_topic
from driftq.pipeline.lake.row_sums import by_topic, hashes, sum_of
from driftq.pipeline.lake.table_layout import BAD_RECORDS, DAY, RECORDS
from driftq.system.clock import SystemClock
from driftq.system.entropy import SystemEntropy

_ROWS_MAX = 262_144
_BYTES_MAX = 64 << 20
_BAD = ""
"""Used instead of a day for records that cannot be read."""


class ParquetPart(NamedTuple):
    """A file that waits to be committed. Its path is relative to the directory of its table."""

    table: str
    path: str
    bytes: int
    day: str
    rows: int
    first_seq: int
    last_seq: int
    written_ms: int
    first_ts: str
    last_ts: str
    """The range of `ts` in whole milliseconds that contains all rows, as Delta's statistics have it."""
    sums: Mapping[str, Sequence[int]]
    """Count and checksum of the rows that the table counts, by topic."""


class ArchivedGap(NamedTuple):
    """A lost range, from a gap row of the source."""

    topic: str
    epoch: int
    gap_from: int
    gap_to: int
    reason: str


class Places(NamedTuple):
    """Where tasks write the rows of each topic, and which rows are new. Topics that are not listed are not expected."""

    tables: Mapping[str, str]
    bad: str
    epochs: Mapping[str, int]
    cuts: Mapping[str, int]
    """Last seq of each topic that its table already has."""
    bad_cuts: Mapping[str, int]
    left: Mapping[str, int]
    """Previous epoch of each topic that was created again. Gap rows for its end get this epoch."""
    staged: str
    """Directory where files wait for their commit."""
    since: Mapping[str, int]
    """The seq of each topic above which its table counts rows."""
    bad_since: Mapping[str, int]


class ParquetPartWriter:
    """Writes the batches of one task to files. Writes when it holds 262,144 rows or 64 MiB."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._decode = _decoder()
        self._held: dict[tuple[str, str], list[pa.Table]] = defaultdict(list)
        self._rows = 0
        self._bytes = 0
        self.parts: list[ParquetPart] = []

    def take(self, batch: pa.RecordBatch) -> None:
        """Sort the records of a batch by table and day, and write files when a limit is reached."""
        rows = pa.Table.from_batches([batch])
        for topic in pc.unique(rows["topic"]).to_pylist():
            one = rows.filter(pc.equal(rows["topic"], topic))
            self._take_topic(topic, one)
        if self._rows >= _ROWS_MAX or self._bytes >= _BYTES_MAX:
            self.flush()

    def _take_topic(self, topic: str, rows: pa.Table) -> None:
        epoch = pa.array([self._places.epochs[topic]], pa.int64()).take(pa.array([0] * len(rows), pa.int32()))
        rows = rows.append_column("epoch", epoch)
        rows = rows.set_column(rows.schema.get_field_index("meta"), "meta", _maps(rows["meta"], self._decode))
        problems = [problem_of(topic, data, self._decode) for data in rows["data"].to_pylist()]
        if any(problems):
            bad = rows.append_column("problem", pa.array(problems, pa.string()))
            new = pc.and_(pc.is_valid(bad["problem"]), pc.greater(bad["seq"], self._places.bad_cuts[topic]))
            self._hold(self._places.bad, _BAD, bad.filter(new).select(BAD_RECORDS.names))
            rows = rows.filter(pc.is_null(bad["problem"]))
        rows = rows.filter(pc.greater(rows["seq"], self._places.cuts[topic]))
        days = pc.cast(rows["ts"], pa.date32())
        table = self._places.tables[topic]
        for day in pc.unique(days).to_pylist():
            one = rows.filter(pc.equal(days, day))
            self._hold(table, str(day), one.select([name for name in RECORDS.names if name != DAY]))

    def _hold(self, table: str, day: str, rows: pa.Table) -> None:
        if not len(rows):
            return
        self._held[table, day].append(rows)
        self._rows += len(rows)
        self._bytes += rows.nbytes

    def flush(self) -> None:
        """Write the held rows to files."""
        for (table, day), pieces in self._held.items():
            since = self._places.since if day else self._places.bad_since
            self.parts.append(_write(self._places.staged, table, day, pa.concat_tables(pieces), since))
        self._held.clear()
        self._rows = self._bytes = 0


def _write(staged: str, table: str, day: str, rows: pa.Table, since: Mapping[str, int]) -> ParquetPart:
    """Write a file to the directory `staged`; its commit moves it to `path` in the table."""
    directory = f"{DAY}={day}/" if day else ""
    path = f"{directory}part-{SystemEntropy().token(16).hex()}.zstd.parquet"
    file = Path(staged, Path(path).name)
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, file, compression="zstd", compression_level=1)
    seqs, times = pc.min_max(rows["seq"]), pc.min_max(rows["ts"].cast(pa.int64()))
    size = os.stat(file).st_size
    ends = (seqs["min"].as_py(), seqs["max"].as_py())
    first, last = _ms_text(times["min"].as_py() // 1000), _ms_text(-(-times["max"].as_py() // 1000))
    counted = {
        topic: tuple(sum_of(hashes(found.filter(pc.greater(found["seq"], since[topic])))))
        for topic, _, found in by_topic(rows)
    }
    return ParquetPart(table, path, size, day, len(rows), *ends, SystemClock().wall_ms(), first, last, counted)


def _ms_text(ms: int) -> str:
    moment = datetime.fromtimestamp(ms // 1000, timezone.utc)  # noqa: UP017  # older Pythons, to which it is pickled, lack UTC
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def _maps(texts: Any, decode: Callable[[str], Any]) -> Any:
    """Return `meta` as maps. It arrives as JSON text: Spark measures a batch with a map column again for every row."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), RECORDS.field("meta").type)
    maps = [None if text is None else list(decode(text).items()) for text in texts.to_pylist()]
    return pa.array(maps, RECORDS.field("meta").type)


def problem_of(topic: str, data: str | None, decode: Callable[[str], Any] = json.loads) -> str | None:
    """Return why a record cannot be read, or None if it can."""
    if data is None:
        return "no data"
    try:
        found = decode(data)
    except ValueError as error:
        return f"no JSON: {error}"
    if is_broker_topic(topic) and not (isinstance(found, dict) and isinstance(found.get("value"), str)):
        return "no message of the broker: it has no value"
    return None


def _decoder() -> Callable[[str], Any]:
    """Return msgspec's fast JSON decoder if it is installed. Not cached, because a cache cannot be pickled by value."""
    try:
        from msgspec.json import decode
    except ImportError:
        return json.loads
    return decode


def write_parts(batches: Iterable[pa.RecordBatch], places: Places) -> Iterator[pa.RecordBatch]:
    """Do the work of one task: take rows of the source, and yield one JSON row for each file and each gap."""
    writer = ParquetPartWriter(places)
    told: list[str] = []
    for batch in batches:
        records = batch.filter(pc.equal(batch["kind"], "record"))
        if len(records):
            writer.take(records)
        told.extend(json.dumps(gap._asdict()) for gap in _gaps(batch, places))
    writer.flush()
    told.extend(json.dumps(part._asdict()) for part in writer.parts)
    yield pa.RecordBatch.from_pydict({"told": pa.array(told, pa.string())})


def _gaps(batch: pa.RecordBatch, places: Places) -> Iterator[ArchivedGap]:
    lost = batch.filter(pc.not_equal(batch["kind"], "record"))
    for row in lost.select(["topic", "gap_from", "gap_to", "reason"]).to_pylist():
        topic, first, last = row["topic"], row["gap_from"], row["gap_to"]
        if topic in places.epochs:
            ended = places.left.get(topic) if last < first else None
            yield ArchivedGap(topic, places.epochs[topic] if ended is None else ended, first, last, row["reason"])
