"""Tables of a lake: made by their first commit, every batch in them once. A real directory, as Delta knows no other."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.lake.delta_tables import Lake, WriterBatch

SCHEMA = pa.schema([("key", pa.string()), ("n", pa.int64())])


def rows(**values: int) -> pa.Table:
    return pa.table({"key": list(values), "n": list(values.values())}, SCHEMA)


def test_a_batch_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    table = Lake(tmp_path).table("things", SCHEMA)
    assert table.append(rows(a=1), WriterBatch("writer", 0))
    assert not table.append(rows(a=1), WriterBatch("writer", 0))
    assert table.append(rows(b=2), WriterBatch("writer", 1))
    assert not table.append(rows(a=1), WriterBatch("writer", 0))
    assert table.read().sort_by("key").to_pydict() == {"key": ["a", "b"], "n": [1, 2]}


def test_batches_are_numbered_per_writer(tmp_path: Path) -> None:
    table = Lake(tmp_path).table("things", SCHEMA)
    assert table.append(rows(a=1), WriterBatch("one", 7))
    assert table.append(rows(b=2), WriterBatch("other", 0))
    assert table.has(WriterBatch("one", 7))
    assert not table.has(WriterBatch("one", 8))


def _staged(lake: Lake) -> AddAction:
    """Write a file that no commit has added yet."""
    lake.staged.mkdir()
    path = lake.staged / "part-1.parquet"
    pq.write_table(rows(a=1), path)
    return AddAction(path.name, path.stat().st_size, {}, 0, True, "{}")


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_that_fails_leaves_its_files_where_the_table_looks_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """A commit may fail after its entry is in the log: for instance no room for the checkpoint that comes next."""
    lake = Lake(tmp_path)
    table, batch = lake.table("things", SCHEMA), WriterBatch("writer", 0)
    table.append(rows(z=0), WriterBatch("other", 0))
    action, commit = _staged(lake), DeltaTable.create_write_transaction

    def failing(*arguments: object, **options: object) -> None:
        if committed:
            commit(*arguments, **options)  # type: ignore[arg-type]
        raise OSError("no space left on device")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", failing)
    if committed:
        assert table.add([action], batch, staged=lake.staged)
    else:
        with pytest.raises(OSError, match="no space left"):
            table.add([action], batch, staged=lake.staged)
        assert (lake.staged / "part-1.parquet").exists()
        monkeypatch.undo()
        assert table.add([action], batch, staged=lake.staged)
    assert table.has(batch)
    assert table.read().sort_by("key").to_pydict() == {"key": ["a", "z"], "n": [1, 0]}


def test_an_upsert_replaces_rows_with_the_same_keys_and_keeps_the_others(tmp_path: Path) -> None:
    table = Lake(tmp_path).table("things", SCHEMA)
    table.upsert(rows(a=1, b=2), ["key"], WriterBatch("writer", 0))
    table.upsert(rows(b=3, c=4), ["key"], WriterBatch("writer", 1))
    assert not table.upsert(rows(a=9), ["key"], WriterBatch("writer", 1))
    assert table.read().sort_by("key").to_pydict() == {"key": ["a", "b", "c"], "n": [1, 3, 4]}


def test_a_table_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    table = Lake(tmp_path).table("things", SCHEMA)
    assert table.read().num_rows == 0
    assert table.files() == []
    assert not table.exists()


def test_a_topic_name_never_leaves_the_lake(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    assert lake.topic("../x").path.parent == tmp_path / "topics"
    assert lake.shared("../x").path.parent == tmp_path / "tables"
    assert lake.checkpoint("../x").parent == tmp_path / "_checkpoints"


def test_a_lake_that_is_no_directory_is_refused_with_the_remedy() -> None:
    with pytest.raises(PipelineError, match="mount it"):
        Lake("s3://bucket/lake")


def test_a_table_can_be_filtered_by_texts_after_merges_and_its_lake_may_be_anywhere(tmp_path: Path) -> None:
    table = Lake(tmp_path / "my lake ü=1%").table("things", SCHEMA)
    table.upsert(rows(a=1, b=2), ["key"], WriterBatch("writer", 0))
    table.upsert(rows(b=3, c=4), ["key"], WriterBatch("writer", 1))
    found = table.read(["n"], pc.field("key").isin(["b", "c"]))
    assert sorted(found["n"].to_pylist()) == [3, 4]
    assert all(Path(file).exists() for file in table.files())
