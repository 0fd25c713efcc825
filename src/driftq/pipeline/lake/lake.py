"""A lake: a directory of Delta tables, without a JVM.

    <lake>/topics/<topic>      records of a topic, by day          <lake>/gaps, bad_records      what archives ran into
    <lake>/tables/<name>       records of many topics, by day      <lake>/runs, steps, attempts  lineage
    <lake>/_checkpoints/<job>  where a query stands                <lake>/rollup                 figures per minute

Exactly once: a commit carries its writer and the number of its batch in the table's transaction log. A batch that is
not behind the writer's last one was committed before; it is answered with False and changes nothing.

Invariant: a file that a crash has left behind belongs to no table, because only a commit makes it part of one.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.lake.names import directory_name
from driftq.pipeline.lake.schemas import DAY, RECORDS

_TRIES = 20
"""Commits of others that one commit may meet before it gives up."""
_COMPACT_EVERY = 100


class Batch(NamedTuple):
    """Which batch of which writer a commit carries."""

    writer: str
    number: int


class Lake:
    """A directory of tables. Nothing is made before something is written."""

    def __init__(self, root: str | Path) -> None:
        if "://" in str(root):
            raise PipelineError(
                f"the lake {str(root)!r} is no directory: mount it, and give the path where it is mounted"
            )
        self.root = Path(root).absolute()

    # Where things are

    def topic(self, name: str) -> "Table":
        """The table of one topic."""
        return Table(self.root / "topics" / directory_name(name), RECORDS, by=[DAY])

    def shared(self, name: str) -> "Table":
        """A table that many topics share."""
        return Table(self.root / "tables" / directory_name(name), RECORDS, by=[DAY])

    def table(self, name: str, schema: pa.Schema) -> "Table":
        """One of the tables that there are once in a lake."""
        return Table(self.root / name, schema)

    def archives(self) -> list["Table"]:
        """All tables of records that there are."""
        found = [*sorted((self.root / "topics").glob("*")), *sorted((self.root / "tables").glob("*"))]
        tables = (Table(path, RECORDS, by=[DAY]) for path in found)
        return [table for table in tables if table.exists()]

    def checkpoint(self, name: str) -> Path:
        """Where Spark notes how far a query is."""
        return self.root / "_checkpoints" / directory_name(name)


class Table:
    """One Delta table, made by the first commit."""

    def __init__(self, path: Path, schema: pa.Schema, *, by: Sequence[str] = ()) -> None:
        self.path = path
        self.schema = schema
        self._by = list(by)

    def exists(self) -> bool:
        """Was anything committed yet?"""
        return DeltaTable.is_deltatable(str(self.path))

    def has(self, batch: Batch) -> bool:
        """Was this batch committed?"""
        return self.exists() and _committed(DeltaTable(self.path), batch)

    def add(self, files: Sequence[AddAction], batch: Batch) -> bool:
        """Make files that are in the directory part of the table; False if the batch has been committed before."""

        def commit(table: DeltaTable, properties: CommitProperties) -> None:
            table.create_write_transaction(
                list(files), "append", table.schema(), self._by, commit_properties=properties
            )

        return self._commit(batch, commit)

    def append(self, rows: pa.Table, batch: Batch) -> bool:
        """Write rows; False if the batch has been committed before."""

        def commit(table: DeltaTable, properties: CommitProperties) -> None:
            write_deltalake(table, rows.cast(self.schema), mode="append", commit_properties=properties)

        return self._commit(batch, commit)

    def upsert(self, rows: pa.Table, keys: Sequence[str], batch: Batch | None = None) -> bool:
        """Write rows in place of those with the same keys; False if the batch has been committed before.

        Without a batch it is done in any case: rows that do not depend on what is there may be written twice.
        """

        def commit(table: DeltaTable, properties: CommitProperties) -> None:
            same = " AND ".join(f"new.{key} = old.{key}" for key in keys)
            merge = table.merge(
                rows.cast(self.schema), same, source_alias="new", target_alias="old", commit_properties=properties
            )
            merge.when_matched_update_all().when_not_matched_insert_all().execute()
            if table.version() % _COMPACT_EVERY == 0:
                table.optimize.compact()

        return self._commit(batch, commit)

    def _commit(self, batch: Batch | None, commit: Callable[[DeltaTable, CommitProperties], None]) -> bool:
        table = self._made()
        if batch is not None and _committed(table, batch):
            return False
        marks = [] if batch is None else [Transaction(batch.writer, batch.number)]
        commit(table, CommitProperties(app_transactions=marks, max_commit_retries=_TRIES))
        return True

    def _made(self) -> DeltaTable:
        if not self.exists():
            try:
                DeltaTable.create(self.path, self.schema, mode="ignore", partition_by=self._by or None)
            except (CommitFailedError, OSError):
                if not self.exists():
                    raise  # it was not another writer that made it first
        return DeltaTable(self.path)

    def dataset(self) -> ds.Dataset:
        """What is in the table; not to be filtered by texts, for merged files cannot be: `read` can."""
        if not self.exists():
            return ds.dataset(self.schema.empty_table())
        by = pa.schema([self.schema.field(name) for name in self._by])
        return ds.dataset(
            self.files(), schema=self.schema, format="parquet", partitioning=ds.partitioning(by, flavor="hive")
        )

    def read(self, columns: list[str] | None = None, where: ds.Expression | None = None) -> pa.Table:
        """Rows, or some columns of some rows."""
        if where is None:
            return self.dataset().to_table(columns=columns)
        pieces = (pa.Table.from_batches([batch]).filter(where) for batch in self.dataset().to_batches())
        chosen = columns or self.schema.names
        empty = self.schema.empty_table().select(chosen)
        return pa.concat_tables([empty, *(piece.select(chosen) for piece in pieces)])

    def files(self) -> list[str]:
        """The Parquet files of the table, for a reader of Parquet."""
        if not self.exists():
            return []
        # Relative, because in whole addresses what is special in the path of the lake is written otherwise.
        actions = pa.table(DeltaTable(self.path).get_add_actions(flatten=True))
        return [str(self.path / unquote(path)) for path in actions["path"].to_pylist()]


def _committed(table: DeltaTable, batch: Batch) -> bool:
    last = table.transaction_version(batch.writer)
    return last is not None and last >= batch.number
