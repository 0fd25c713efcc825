"""A lake: a directory of Delta tables, without a JVM.

    <lake>/topics/<topic>      records of a topic, by day          <lake>/gaps, bad_records      what archives ran into
    <lake>/tables/<name>       records of many topics, by day      <lake>/runs, steps, attempts  lineage
    <lake>/_checkpoints/<job>  where a query stands                <lake>/rollup                 figures per minute
    <lake>/driftq-lake.json    whose topics these are

Exactly once: a commit carries its writer and the number of its batch in the table's transaction log. A batch that is
not behind the writer's last one was committed before; it is answered with False and changes nothing. How far a table
is with its topics stands there too (`lake.marks`), whoever has written them.

Invariant: a file that a crash has left behind belongs to no table, because only a commit makes it part of one.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.lake import table_progress as marks
from driftq.pipeline.lake.table_layout import DAY, RECORDS, directory_name
from driftq.pipeline.lake.table_progress import Move
from driftq.pipeline.offsets import OffsetRange

_TRIES = 20
"""Commits of others that one commit may meet before it gives up."""
_COMPACT_EVERY = 100


class WriterBatch(NamedTuple):
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

    def topic(self, name: str) -> "LakeTable":
        """The table of one topic."""
        return LakeTable(self.root / "topics" / directory_name(name), RECORDS, by=[DAY])

    def shared(self, name: str) -> "LakeTable":
        """A table that many topics share."""
        return LakeTable(self.root / "tables" / directory_name(name), RECORDS, by=[DAY])

    def table(self, name: str, schema: pa.Schema) -> "LakeTable":
        """One of the tables that there are once in a lake."""
        return LakeTable(self.root / name, schema)

    def archives(self) -> list["LakeTable"]:
        """All tables of records that there are."""
        found = [*sorted((self.root / "topics").glob("*")), *sorted((self.root / "tables").glob("*"))]
        tables = (LakeTable(path, RECORDS, by=[DAY]) for path in found)
        return [table for table in tables if table.exists()]

    def target(self, topic: str, shared: str | None) -> "LakeTable":
        """The table that a topic goes to: its own, or the shared one of a name.

        Raises PipelineError if the lake has the topic in another one: whoever reads a lake finds a record once.
        """
        target = self.topic(topic) if shared is None else self.shared(shared)
        found = sorted((self.root / "tables").glob("*"))
        others = [self.topic(topic), *(LakeTable(path, RECORDS, by=[DAY]) for path in found)]
        for other in others:
            if other.path != target.path and other.holds(topic):
                raise PipelineError(
                    f"the lake has topic {topic!r} in {other.path.relative_to(self.root)}, and a topic is in one table "
                    "of a lake: say the same --table as before, or take another --lake"
                )
        return target

    def checkpoint(self, name: str) -> Path:
        """Where Spark notes how far a query is."""
        return self.root / "_checkpoints" / directory_name(name)


class LakeTable:
    """One Delta table, made by the first commit."""

    def __init__(self, path: Path, schema: pa.Schema, *, by: Sequence[str] = ()) -> None:
        self.path = path
        self.schema = schema
        self._by = list(by)

    def exists(self) -> bool:
        """Was anything committed yet?"""
        return DeltaTable.is_deltatable(str(self.path))

    def has(self, batch: WriterBatch) -> bool:
        """Was this batch committed?"""
        return self.exists() and _committed(DeltaTable(self.path), batch)

    def holds(self, topic: str) -> bool:
        """Has it ever got something of a topic?"""
        return self.exists() and marks.holds(DeltaTable(self.path), topic)

    def mark(self, topic: str, epoch: int) -> int:
        """The last seq of a topic that is settled here; 0 where nothing is."""
        return marks.mark_of(DeltaTable(self.path), topic, epoch) if self.exists() else 0

    def moves(self, parts: Iterable[OffsetRange], anew: Collection[str] = ()) -> dict[str, Move]:
        """What a batch that reads these ranges brings to the table, by topic; of some it is known to be all new."""
        table = DeltaTable(self.path) if self.exists() else None
        found = {part: 0 if table is None else marks.mark_of(table, part.topic, part.epoch) for part in parts}
        return {part.topic: marks.move_of(part, mark, anew=part.topic in anew) for part, mark in found.items()}

    def add(self, files: Sequence[AddAction], batch: WriterBatch, moves: Sequence[Move] = ()) -> bool:
        """Make files that are in the directory part of the table; False if the batch has been committed before."""

        def commit(table: DeltaTable, properties: CommitProperties) -> None:
            table.create_write_transaction(
                list(files), "append", table.schema(), self._by, commit_properties=properties
            )

        return self._commit(batch, commit, moves)

    def append(self, rows: pa.Table, batch: WriterBatch, moves: Sequence[Move] = ()) -> bool:
        """Write rows; False if the batch has been committed before."""

        def commit(table: DeltaTable, properties: CommitProperties) -> None:
            write_deltalake(table, rows.cast(self.schema), mode="append", commit_properties=properties)

        return self._commit(batch, commit, moves)

    def upsert(
        self, rows: pa.Table, keys: Sequence[str], batch: WriterBatch | None = None, moves: Sequence[Move] = ()
    ) -> bool:
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

        return self._commit(batch, commit, moves)

    def _commit(
        self, batch: WriterBatch | None, commit: Callable[[DeltaTable, CommitProperties], None], moves: Sequence[Move]
    ) -> bool:
        table = self._made()
        if batch is not None and _committed(table, batch):
            return False
        marks.check(table, moves)
        own = [] if batch is None else [Transaction(batch.writer, batch.number)]
        try:
            commit(
                table,
                CommitProperties(app_transactions=[*own, *marks.transactions(moves)], max_commit_retries=_TRIES),
            )
        except CommitFailedError as error:
            if moves and "Concurrent transaction" in str(error):
                raise marks.collision(moves[0].topic) from error
            raise
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


def _committed(table: DeltaTable, batch: WriterBatch) -> bool:
    last = table.transaction_version(batch.writer)
    return last is not None and last >= batch.number
