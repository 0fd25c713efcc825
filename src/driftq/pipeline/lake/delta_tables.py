"""A lake: a directory of Delta tables, written without a JVM.

    <lake>/topics/<topic>      records of a topic, by day          <lake>/gaps, bad_records      problems of archives
    <lake>/tables/<name>       records of many topics, by day      <lake>/runs, steps, attempts  lineage
    <lake>/_checkpoints/<job>  the position of a query             <lake>/rollup                 figures per minute
    <lake>/_staged             files of tasks before commit  <lake>/driftq-lake.json    the id of the server

Exactly once: a commit stores its writer and the number of its batch in the table's transaction log. A batch whose
number is not above the writer's last one was committed before; the call returns False and changes nothing. The log also
has how far the table is with each topic (`lake.table_progress`), whichever query wrote it.

Invariant: a file left over from a crash is not part of any table, because only a commit adds files to a table, and it
is not in the directory of a table, unless the process was killed between the move of the files and their commit.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from driftq.pipeline.lake.row_sums import RowSum
from driftq.pipeline.lake.table_layout import DAY, RECORDS, directory_name
from driftq.pipeline.lake.table_progress import Counted, Move
from driftq.pipeline.offsets import OffsetRange

_TRIES = 20
"""Maximum number of concurrent commits that one commit retries after."""
_COMPACT_EVERY = 100


class WriterBatch(NamedTuple):
    """The writer and the batch number that a commit stores."""

    writer: str
    number: int


class Lake:
    """A directory of tables. Directories are created by the first write."""

    def __init__(self, root: str | Path) -> None:
        if "://" in str(root):
            raise PipelineError(f"the lake {str(root)!r} is not a directory: mount it, and give the path of the mount")
        self.root = Path(root).absolute()

    # Paths and tables

    def topic(self, name: str) -> "LakeTable":
        """Return the table of one topic."""
        return LakeTable(self.root / "topics" / directory_name(name), RECORDS, by=[DAY])

    def shared(self, name: str) -> "LakeTable":
        """Return a table that several topics share."""
        return LakeTable(self.root / "tables" / directory_name(name), RECORDS, by=[DAY])

    def table(self, name: str, schema: pa.Schema) -> "LakeTable":
        """Return a table that exists once per lake, such as `gaps`."""
        return LakeTable(self.root / name, schema)

    def archives(self) -> list["LakeTable"]:
        """Return all existing tables of records."""
        found = [*sorted((self.root / "topics").glob("*")), *sorted((self.root / "tables").glob("*"))]
        tables = (LakeTable(path, RECORDS, by=[DAY]) for path in found)
        return [table for table in tables if table.exists()]

    def target(self, topic: str, shared: str | None) -> "LakeTable":
        """Return the table that stores a topic: its own, or the shared table with this name.

        Raises PipelineError if another table of the lake already has the topic: a reader of a lake must find a record
        once.
        """
        target = self.topic(topic) if shared is None else self.shared(shared)
        found = sorted((self.root / "tables").glob("*"))
        others = [self.topic(topic), *(LakeTable(path, RECORDS, by=[DAY]) for path in found)]
        for other in others:
            if other.path != target.path and other.holds(topic):
                raise PipelineError(
                    f"the lake has topic {topic!r} in {other.path.relative_to(self.root)}, and a topic can be in only "
                    "one table of a lake: use the same --table as before, or another --lake"
                )
        return target

    @property
    def staged(self) -> Path:
        """Directory for files that tasks have written and no commit has added yet. It is outside all tables."""
        return self.root / "_staged"

    def rebuild_mark(self, topic: str) -> Path:
        """Return the file that exists while the table of a topic is rebuilt, also after the rebuild was killed."""
        return self.root / "_rebuilds" / directory_name(topic)

    def check_rebuild(self, topics: Iterable[str]) -> None:
        """Raise PipelineError if a rebuild of one of these topics is running or was interrupted.

        The table then lacks records below those that an archive would add, and its mark would pass over them.
        """
        for topic in topics:
            if self.rebuild_mark(topic).exists():
                raise PipelineError(
                    f"the table of topic {topic!r} is being rebuilt, or a rebuild was interrupted: wait for it, or run "
                    f"`driftq pipeline run archive --rebuild {topic} --lake {self.root}` to finish it"
                )

    def checkpoint(self, name: str) -> Path:
        """Return the checkpoint directory where Spark stores the position of a query."""
        return self.root / "_checkpoints" / directory_name(name)


class LakeTable:
    """One Delta table. The first commit creates it."""

    def __init__(self, path: Path, schema: pa.Schema, *, by: Sequence[str] = ()) -> None:
        self.path = path
        self.schema = schema
        self._by = list(by)

    def exists(self) -> bool:
        """Whether the table was created, by a first commit."""
        return DeltaTable.is_deltatable(str(self.path))

    def has(self, batch: WriterBatch) -> bool:
        """Whether this batch was committed."""
        return self.exists() and _committed(DeltaTable(self.path), batch)

    def holds(self, topic: str) -> bool:
        """Whether the table has ever stored records of a topic."""
        return self.exists() and marks.holds(DeltaTable(self.path), topic)

    def mark(self, topic: str, epoch: int) -> int:
        """Return the last seq of a topic that is complete in this table, or 0."""
        return marks.mark_of(DeltaTable(self.path), topic, epoch) if self.exists() else 0

    def moves(self, parts: Iterable[OffsetRange], anew: Collection[str] = ()) -> dict[str, Move]:
        """Return how a batch with these ranges moves the marks of the table, by topic.

        Topics in `anew` are known to restart below their mark, so all their rows are new.
        """
        table = DeltaTable(self.path) if self.exists() else None
        found = {part: 0 if table is None else marks.mark_of(table, part.topic, part.epoch) for part in parts}
        return {part.topic: marks.move_of(part, mark, anew=part.topic in anew) for part, mark in found.items()}

    def counted(self, topic: str, epoch: int) -> Counted:
        """Return how many rows of a topic the table has recorded, and their checksum."""
        return marks.counted(DeltaTable(self.path), topic, epoch) if self.exists() else Counted(0, RowSum())

    def recorded(self) -> dict[tuple[str, int], int]:
        """Return the marks of all topics that the table has recorded, by topic and epoch."""
        return marks.recorded(DeltaTable(self.path)) if self.exists() else {}

    def add(
        self,
        files: Sequence[AddAction],
        batch: WriterBatch,
        moves: Sequence[Move] = (),
        sums: Mapping[str, RowSum] | None = None,
        *,
        staged: Path | None = None,
    ) -> bool:
        """Add files to the table, after moving them from directory `staged`, if there is one.

        `sums` has count and checksum of the rows, by topic. Returns False if the batch was committed before.
        """

        def commit(table: DeltaTable, properties: CommitProperties) -> None:
            moved = {} if staged is None else self._move(staged, files)
            try:
                table.create_write_transaction(
                    list(files), "append", table.schema(), self._by, commit_properties=properties
                )
            except Exception:
                # A commit may fail after its entry is in the log, for instance while a checkpoint is written.
                if _committed(DeltaTable(self.path), batch):
                    return
                for before, place in moved.items():  # no table has it, and a reader of Parquet must not find it
                    place.replace(before)
                raise

        return self._commit(batch, commit, moves, sums)

    def _move(self, staged: Path, files: Sequence[AddAction]) -> dict[Path, Path]:
        """Move files to their places in the table. Returns the new place of each file."""
        moved = {}
        for file in files:
            place = self.path / file.path
            place.parent.mkdir(parents=True, exist_ok=True)
            moved[staged / place.name] = (staged / place.name).replace(place)
        return moved

    def append(
        self,
        rows: pa.Table,
        batch: WriterBatch,
        moves: Sequence[Move] = (),
        sums: Mapping[str, RowSum] | None = None,
    ) -> bool:
        """Append rows to the table. Returns False if the batch was committed before."""

        def commit(table: DeltaTable, properties: CommitProperties) -> None:
            write_deltalake(table, rows.cast(self.schema), mode="append", commit_properties=properties)

        return self._commit(batch, commit, moves, sums)

    def upsert(
        self, rows: pa.Table, keys: Sequence[str], batch: WriterBatch | None = None, moves: Sequence[Move] = ()
    ) -> bool:
        """Write rows and replace those with the same keys. Returns False if the batch was committed before.

        Without a batch it always writes; use that only for rows that may be written twice.
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
        self,
        batch: WriterBatch | None,
        commit: Callable[[DeltaTable, CommitProperties], None],
        moves: Sequence[Move],
        sums: Mapping[str, RowSum] | None = None,
    ) -> bool:
        own = [] if batch is None else [Transaction(batch.writer, batch.number)]
        for tries in range(_TRIES, 0, -1):
            table = self._made()
            if batch is not None and _committed(table, batch):
                return False
            marks.check(table, moves)
            entries = [*own, *marks.transactions(table, moves, sums or {})]
            try:
                commit(table, CommitProperties(app_transactions=entries, max_commit_retries=_TRIES))
            except CommitFailedError as error:
                # Another commit has changed the counts, for example an erasure: they are read again.
                if tries == 1 or not moves or "Concurrent transaction" not in str(error):
                    raise
            else:
                break
        return True

    def _made(self) -> DeltaTable:
        if not self.exists():
            try:
                DeltaTable.create(self.path, self.schema, mode="ignore", partition_by=self._by or None)
            except (CommitFailedError, OSError):
                if not self.exists():
                    raise  # no other writer has created it first
        return DeltaTable(self.path)

    def dataset(self, files: Sequence[str] | None = None) -> ds.Dataset:
        """Return the rows of all files, or of these, as a dataset.

        Do not filter it by text columns, which fails for merged files: use `read`.
        """
        if not self.exists():
            return ds.dataset(self.schema.empty_table())
        by = pa.schema([self.schema.field(name) for name in self._by])
        return ds.dataset(
            self.files() if files is None else list(files),
            schema=self.schema,
            format="parquet",
            partitioning=ds.partitioning(by, flavor="hive"),
        )

    def read(self, columns: list[str] | None = None, where: ds.Expression | None = None) -> pa.Table:
        """Return the rows that match `where`, with these columns; all rows and columns by default."""
        if where is None:
            return self.dataset().to_table(columns=columns)
        pieces = (pa.Table.from_batches([batch]).filter(where) for batch in self.dataset().to_batches())
        chosen = columns or self.schema.names
        empty = self.schema.empty_table().select(chosen)
        return pa.concat_tables([empty, *(piece.select(chosen) for piece in pieces)])

    def files(self) -> list[str]:
        """Return the paths of the table's Parquet files."""
        if not self.exists():
            return []
        # Relative paths, because absolute URLs escape special characters in the path of the lake.
        actions = pa.table(DeltaTable(self.path).get_add_actions(flatten=True))
        return [str(self.path / unquote(path)) for path in actions["path"].to_pylist()]


def _committed(table: DeltaTable, batch: WriterBatch) -> bool:
    last = table.transaction_version(batch.writer)
    return last is not None and last >= batch.number
