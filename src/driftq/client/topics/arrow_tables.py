"""Topics as tables (http-v0 §22.1). pyarrow, pandas and polars are imported by the calls that need them.

The columns of a table are `seq, ts, node, tag, meta, data`; `meta` and `data` are JSON text. Its schema's metadata says
where reading stopped (`next_from_seq`, `head_seq`, `epoch`) and what is missing (`tombstones`, a JSON array).
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
"""Columns of a table that a topic gives and does not take."""
_WRITE_BYTES_MAX = BULK_BYTES_MAX // 4
"""Of one write: well below what a server takes, for the text of a table may be longer than its columns."""


class Arrow(Operations):
    """What can be done with a topic as a table."""

    _path: str

    @operation
    def to_arrow(
        self, from_seq: int | None = None, *, from_ts: int | None = None, limit: int | None = None
    ) -> "Plan[pyarrow.Table]":
        """The records behind a cursor, up to the head or to `limit` of them, as one table."""
        return _table(self._calls, self._path, from_seq, from_ts, limit)

    @operation
    def to_pandas(
        self, from_seq: int | None = None, *, from_ts: int | None = None, limit: int | None = None
    ) -> "Plan[pandas.DataFrame]":
        """The same as a pandas DataFrame."""
        frame: pandas.DataFrame = (yield from _table(self._calls, self._path, from_seq, from_ts, limit)).to_pandas()
        return frame

    @operation
    def to_polars(
        self, from_seq: int | None = None, *, from_ts: int | None = None, limit: int | None = None
    ) -> "Plan[polars.DataFrame]":
        """The same as a polars DataFrame."""
        import polars  # only those who ask for it have it

        frame = polars.from_arrow((yield from _table(self._calls, self._path, from_seq, from_ts, limit)))
        assert isinstance(frame, polars.DataFrame)
        return frame

    @flow
    def arrow_pages(
        self, from_seq: int | None = None, *, from_ts: int | None = None, page_records: int = BULK_RECORDS
    ) -> "Flow[pyarrow.Table]":
        """The records behind a cursor as one table a page, up to the head as it is at the first one."""
        return _pages(self._calls, self._path, from_seq, from_ts, page_records)

    @operation
    def write_arrow(
        self, table: Any, *, node: str | None = None, idempotency_key: str | None = None, create: bool | None = None
    ) -> Plan[list[Written]]:
        """Write a table: pyarrow's, or anything `pyarrow.table` takes, as pandas and polars frames.

        With a column `data`, of JSON text, its rows are the records, and `tag`, `node` and `meta` may stand beside it;
        `seq` and `ts` may too, as `to_arrow` gives them, and are left out: the topic has its own. Without `data` every
        row is the data of a record, as an object. Each of the writes it takes is all or nothing.
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
    """All pages as one table."""
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
    """A table of none, which stands where reading would begin; a server gives no page without a record."""
    page = yield from _page(calls, path, from_seq, from_ts, 1)
    stands = from_seq or 0
    if from_ts is not None:
        stands = page["seq"][0].as_py() - 1 if len(page) else _fact(page, b"next_from_seq")
    facts = {**page.schema.metadata, b"next_from_seq": b"%d" % stands, b"tombstones": b"[]"}
    facts.pop(b"tombstone", None)
    return page.slice(0, 0).replace_schema_metadata(facts)


def _bodies(table: Any) -> Iterator[bytes]:
    """The writes that a table takes, as Arrow streams."""
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
    """A table as a write takes it: the columns of records as plain text; of any other table every row is an object."""
    import pyarrow as pa

    if "data" not in table.schema.names:
        rows = [encode(row, enc_hook=_text_of).decode() for row in table.to_pylist()]
        return pa.table({"data": pa.array(rows, pa.utf8())})
    kept = table.select([name for name in table.schema.names if name not in _GIVEN])
    plain = [field.with_type(_plain(field.type)) for field in kept.schema]
    return kept.cast(pa.schema(plain))


def _plain(kind: "pyarrow.DataType") -> "pyarrow.DataType":
    """As a server takes text: polars keeps it as views, frames of both kinds as categories, and none at all as null."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    return pa.utf8() if pa.types.is_string_view(kind) or pa.types.is_null(kind) else kind


def _text_of(value: object) -> str:
    """What JSON has no word for: the moments and spans of pandas as those of Python, anything else as it prints."""
    told = getattr(value, "isoformat", value.__str__)
    return str(told())
