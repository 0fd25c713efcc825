"""Where a new query begins."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs.start_seqs import starting
from driftq.pipeline.lake.archive_check import TopicExtent
from driftq.pipeline.lake.delta_tables import Lake, LakeTable, WriterBatch
from driftq.pipeline.offsets import OffsetRange

SCHEMA = pa.schema([("n", pa.int64())])


class Topics:
    """How topics stand."""

    def __init__(self, **standings: TopicExtent) -> None:
        self._standings = standings

    def standing(self, topic: str) -> TopicExtent | None:
        return self._standings.get(topic)

    def pages(self, topic: str, first: int, last: int) -> Iterator[pa.Table]:
        raise AssertionError("nobody reads here")


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    made = Lake(tmp_path / "lake").table("things", SCHEMA)
    moves = made.moves([OffsetRange("a", 7, 0, 12)])
    made.append(pa.table({"n": [1]}, SCHEMA), WriterBatch("query", 0), list(moves.values()))
    return made


def test_it_begins_behind_what_the_table_has_of_the_same_life(tmp_path: Path, table: LakeTable) -> None:
    live = Topics(a=TopicExtent(7, 1, 20), b=TopicExtent(7, 1, 20))
    assert starting(["a", "b", "none"], live, tmp_path, lambda _: table) == '{"a":13}'
    assert starting(["a"], Topics(a=TopicExtent(8, 1, 20)), tmp_path, lambda _: table) == "earliest"


def test_one_that_has_begun_goes_on_where_spark_knows(tmp_path: Path, table: LakeTable) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets/0").touch()
    assert starting(["a"], Topics(a=TopicExtent(7, 1, 20)), tmp_path, lambda _: table) == "earliest"


def test_a_topic_that_has_lost_its_end_is_refused(tmp_path: Path, table: LakeTable) -> None:
    with pytest.raises(PipelineError, match="'a' ends at seq 11, but the lake has it up to seq 12"):
        starting(["a"], Topics(a=TopicExtent(7, 1, 11)), tmp_path, lambda _: table)
