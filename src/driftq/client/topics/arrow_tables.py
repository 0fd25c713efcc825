"""Topics as tables (http-v0 §22.1). Only the calls that need pyarrow, pandas or polars import them.

The columns of a table are `seq, ts, node, tag, meta, data`; `meta` and `data` are JSON text. The metadata of the schema
has the position after the last record (`next_from_seq`, `head_seq`, `epoch`) and the gaps (`tombstones`, a JSON array).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec.json import encode

from driftq.client.topics.additions import ARROW
from driftq.client.transport.calls import JSON, Calls, decoded, present, query_of
from driftq.client.transport.operations import Operations, flow, operation
from driftq.client.transport.plan import Emit, Flow, Plan, Request
from driftq.client.transport.retry import Repeat
from driftq.model.limits import ARROW_WRITE_RECORDS_MAX, BULK_BYTES_MAX, BULK_RECORDS
from driftq.model.v0_answers import Written

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

_GIVEN = ("seq", "ts")
"""Columns that a topic sets itself; a write leaves them out."""
_WRITE_BYTES_MAX = BULK_BYTES_MAX // 4
"""Limit for the columns of one write. It is far below the server's limit because JSON text can be longer."""


class Arrow(Operations):
    """Calls that read a topic as a table and write a table to it."""

    _path: str

    @operation
    def to_arrow(
        self, from_seq: int | None = None, *, from_ts: int | None = None, limit: int | None = None
    ) -> "Plan[pyarrow.Table]":
        """Return the records after a cursor as one table, up to the head or at most `limit` records."""
        return _table(self._calls, self._path, from_seq, from_ts, limit)

    @operation
    def to_pandas(
        self, from_seq: int | None = None, *, from_ts: int | None = None, limit: int | None = None
    ) -> "Plan[pandas.DataFrame]":
        """Return the records after a cursor as a pandas DataFrame, with the parameters of `to_arrow`."""
        frame: pandas.DataFrame = (yield from _table(self._calls, self._path, from_seq, from_ts, limit)).to_pandas()
        return frame

    @operation
    def to_polars(
        self, from_seq: int | None = None, *, from_ts: int | None = None, limit: int | None = None
    ) -> "Plan[polars.DataFrame]":
        """Return the records after a cursor as a polars DataFrame, with the parameters of `to_arrow`."""
        import polars  # an optional package

        frame = polars.from_arrow((yield from _table(self._calls, self._path, from_seq, from_ts, limit)))
        assert isinstance(frame, polars.DataFrame)
        return frame

    @flow
    def arrow_pages(
        self, from_seq: int | None = None, *, from_ts: int | None = None, page_records: int = BULK_RECORDS
    ) -> "Flow[pyarrow.Table]":
        """Yield the records after a cursor as one table per page, up to the head at the time of the first page."""
        return _pages(self._calls, self._path, from_seq, from_ts, page_records)

    @operation
    def write_arrow(
        self, table: Any, *, node: str | None = None, idempotency_key: str | None = None, create: bool | None = None
    ) -> Plan[list[Written]]:
        """Write a pyarrow table, or anything that `pyarrow.table` accepts, such as a pandas or polars frame.

        - With a column `data` of JSON text, each row is a record. The columns `tag`, `node` and `meta` are used too;
          `seq` and `ts`, as in a table of `to_arrow`, are ignored, because the topic sets its own.
        - Without a column `data`, each row becomes the data of one record, as a JSON object.

        A large table takes several writes. Each of them is written completely or not at all; return their answers.
        """
        key = idempotency_key or self._calls.fresh_key()
        done = []
        for number, body in enumerate(_bodies(table)):
            own = None if key is None else f"{key}.{number}"
            query = query_of({"node": node, "idempotency_key": own, "create": create})
            request = Request("POST", self._path, query, {"content-type": ARROW}, body)
            response = yield from self._calls.response(request, Repeat.SAME if key else Repeat.AGAIN)
            done.append(decoded(response, Written))
        return done


def _page(
    calls: Calls, path: str, from_seq: int | None, from_ts: int | None, records: int, epoch: int | None = None
) -> "Plan[pyarrow.Table]":
    import pyarrow as pa

    asked = {"from_seq": from_seq, "from_ts": from_ts, "epoch": epoch, "limit": records, "include_tags": True}
    body = encode(present(asked))
    request = Request("POST", f"{path}/diff", headers={**JSON, "accept": ARROW}, content=body, takes_view=True)
    response = yield from calls.response(request, Repeat.SAME)
    return pa.ipc.open_stream(response.content).read_all()


def _fact(page: "pyarrow.Table", name: bytes) -> int:
    return int(page.schema.metadata[name])


def _pages(
    calls: Calls, path: str, from_seq: int | None, from_ts: int | None, page_records: int
) -> "Flow[pyarrow.Table]":
    page = yield from _page(calls, path, from_seq, from_ts, page_records)
    until = _fact(page, b"head_seq")
    yield Emit(page)
    while _fact(page, b"next_from_seq") < until:
        epoch = _fact(page, b"epoch")
        page = yield from _page(calls, path, _fact(page, b"next_from_seq"), None, page_records, epoch)
        yield Emit(page)


def _table(
    calls: Calls, path: str, from_seq: int | None, from_ts: int | None, limit: int | None
) -> "Plan[pyarrow.Table]":
    """Return all pages as one table."""
    import pyarrow as pa

    if limit == 0:
        return (yield from _no_rows(calls, path, from_seq, from_ts))
    first = BULK_RECORDS if limit is None else min(BULK_RECORDS, limit)
    pages = [(yield from _page(calls, path, from_seq, from_ts, first))]
    until, rows = _fact(pages[0], b"head_seq"), len(pages[0])
    while _fact(pages[-1], b"next_from_seq") < until and (limit is None or rows < limit):
        left = BULK_RECORDS if limit is None else min(BULK_RECORDS, limit - rows)
        epoch = _fact(pages[-1], b"epoch")
        pages.append((yield from _page(calls, path, _fact(pages[-1], b"next_from_seq"), None, left, epoch)))
        rows += len(pages[-1])
    facts = dict(pages[-1].schema.metadata)
    gaps = [page.schema.metadata[b"tombstone"] for page in pages if page.schema.metadata.get(b"tombstone")]
    facts.pop(b"tombstone", None)
    return pa.concat_tables([page.replace_schema_metadata(None) for page in pages]).replace_schema_metadata(
        {**facts, b"tombstones": b"[" + b",".join(gaps) + b"]"}
    )


def _no_rows(calls: Calls, path: str, from_seq: int | None, from_ts: int | None) -> "Plan[pyarrow.Table]":
    """Return a table without rows whose metadata has the position where reading would begin.

    The server returns at least one record per page, so this asks for one and drops it.
    """
    page = yield from _page(calls, path, from_seq, from_ts, 1)
    position = from_seq or 0
    if from_ts is not None:
        position = page["seq"][0].as_py() - 1 if len(page) else _fact(page, b"next_from_seq")
    facts = {**page.schema.metadata, b"next_from_seq": b"%d" % position, b"tombstones": b"[]"}
    facts.pop(b"tombstone", None)
    return page.slice(0, 0).replace_schema_metadata(facts)


def _bodies(table: Any) -> Iterator[bytes]:
    """Yield the bodies of the writes for a table, as Arrow streams."""
    import pyarrow as pa

    whole = table if isinstance(table, pa.Table) else pa.table(table)
    size = max(1, whole.nbytes // max(1, len(whole)))
    rows = max(1, min(ARROW_WRITE_RECORDS_MAX, _WRITE_BYTES_MAX // size))
    for batch in whole.combine_chunks().to_batches(max_chunksize=rows):
        sent = records_of(pa.Table.from_batches([batch]))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, sent.schema) as writer:
            writer.write_table(sent)
        yield sink.getvalue().to_pybytes()


def records_of(table: "pyarrow.Table") -> "pyarrow.Table":
    """Return a table that the server accepts as a write.

    With a column `data`, all columns but `seq` and `ts` stay, in types that the server accepts. Without it, each row
    becomes one record whose data is a JSON object.
    """
    import pyarrow as pa

    if "data" not in table.schema.names:
        rows = [encode(row, enc_hook=_text_of).decode() for row in table.to_pylist()]
        return pa.table({"data": pa.array(rows, pa.utf8())})
    kept = table.select([name for name in table.schema.names if name not in _GIVEN])
    plain = [field.with_type(_plain(field.type)) for field in kept.schema]
    return kept.cast(pa.schema(plain))


def _plain(kind: "pyarrow.DataType") -> "pyarrow.DataType":
    """Return the type in which the server accepts a column.

    Text of polars has the type string view, categories of both kinds of frames are dictionaries, and a column without
    any value has the type null.
    """
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    return pa.utf8() if pa.types.is_string_view(kind) or pa.types.is_null(kind) else kind


def _text_of(value: object) -> str:
    """Return the text of a value that JSON lacks: dates, times and durations in ISO format, anything else as `str`."""
    as_text = getattr(value, "isoformat", value.__str__)
    return str(as_text())
