"""The same rows whatever path they take: from the server, from sealed segments in place, through Spark's own reader."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from driftq.pipeline import read_topic
from driftq.pipeline.server_connection import Wire
from driftq.pipeline.source import local_segments as in_place
from driftq.pipeline.source.read_columns import Projection, ddl, names_of
from driftq.pipeline.source.read_options import parse
from driftq.pipeline.source.split_plan import Piece, Split, TopicFiles, splits_of
from driftq.pipeline.source.split_reader import Task, read_split
from driftq.pipeline.source.topic_listing import TopicListing
from tests.pipeline.topics import PATIENCE_S, ask, fill, table
from tests.support.process import ServerProcess
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FLAGS = ("--segment-max-events", "200", "--hot-retain-segments", "4")


class _World:
    """A server of its own, with a topic that has seen everything: deletes, evictions, a hole, another life."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._flags = (*_FLAGS, "--cold-dir", str(directory / "cold"))
        self.server = self._started()

    def _started(self) -> ServerProcess:
        server = ServerProcess(self._directory, *self._flags)
        server.wait_ready()
        return server

    def restart(self) -> None:
        """Delete flags are in the files and old segments in the cold tier: a stop leaves a checkpoint behind."""
        assert self.server.stop() == 0
        self.server = self._started()

    @property
    def url(self) -> str:
        return f"http://{self.server.address}"

    def manifest(self, topic: str) -> TopicFiles:
        with Wire(self.url, None) as wire:
            return TopicListing(wire, parse({"topic": topic})).wanted()[0]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_World]:
    made = _World(tmp_path_factory.mktemp("world"))
    try:
        server = made.server
        fill(server, "eventful", range(300))
        ask(server, "DELETE", "/v0/topics/eventful")
        ask(server, "PUT", "/v0/topics/eventful", {"cap_records": 2200})
        fill(server, "eventful", range(1250), size=50, meta={"by": "test"})
        fill(server, "eventful", range(1250, 2500), size=50, node="x")
        ask(server, "POST", "/v0/topics/eventful/delete", {"match": "t3"})
        fill(server, "eventful", range(2500, 2650), size=50)
        _wait_for_cold(made)
        ask(server, "POST", "/v0/topics/eventful/delete", {"match": "t5"})
        made.restart()
        _damage(made)
        made.restart()
        yield made
    finally:
        made.server.process.kill()
        made.server.process.communicate(timeout=PATIENCE_S)


def _wait_for_cold(world: _World) -> None:
    """Until sealed segments have moved."""
    until(
        lambda: {segment.tier for segment in world.manifest("eventful").segments},
        lambda tiers: "cold" in tiers,
        PATIENCE_S,
    )


def _damage(world: _World) -> None:
    """Bad bytes in the middle of a hot segment: the server makes a hole of that block when somebody reads it."""
    segment = next(each for each in world.manifest("eventful").segments if each.tier == "hot")
    path = Path(world.manifest("eventful").hot_root, segment.file)
    with path.open("r+b") as file:
        file.seek(300)
        file.write(b"\xff" * 16)
    ask(world.server, "POST", "/v0/topics/eventful/diff", {"from_seq": segment.first - 1, "limit": 1000})


def _rows(world: _World, *, files: bool, split_records: int = 10**6) -> list[dict[str, Any]]:
    """What tasks read."""
    asked = parse({"topic": "eventful", "withGaps": "true"}, server=world.url)
    schema = StructType.fromDDL(ddl(names_of(with_gaps=True, with_v1=False)))
    assert isinstance(schema, StructType)
    manifest = world.manifest("eventful")
    with Wire(world.url, None) as wire:
        gaps = TopicListing(wire, asked).gaps(manifest, 0, manifest.head)
    task = Task(wire, Projection(to_arrow_schema(schema, timezone="UTC")), (), "rows", in_place=files)
    splits = splits_of(manifest, 0, manifest.head, split_records, gaps)
    with task.wire:
        return [row for split in splits for batch in read_split(task, split) for row in batch.to_pylist()]


def test_a_topic_with_everything_reads_identically_through_the_three_paths(
    world: _World, spark: "SparkSession"
) -> None:
    manifest = world.manifest("eventful")
    tiers = {segment.tier for segment in manifest.segments}
    assert tiers == {"hot", "cold"}
    assert manifest.holes
    assert manifest.evict_floor > 1
    from_server = _rows(world, files=False)
    assert _rows(world, files=True) == from_server
    assert _rows(world, files=True, split_records=130) == from_server
    by_source = table(spark, "eventful", server=world.url, withGaps="true").orderBy("seq", "kind").collect()
    by_parquet = read_topic(spark, "eventful", server=world.url, withGaps="true").orderBy("seq", "kind").collect()
    assert by_parquet == by_source
    assert [row.seq for row in by_source] == sorted(row["seq"] for row in from_server)
    kinds = [(row.gap_from, row.gap_to, row.reason) for row in by_source if row.kind == "tombstone"]
    assert [reason for _, _, reason in kinds] == ["cap", "corruption"]
    assert not [row for row in by_source if row.tag == "t5" or (row.tag == "t3" and row.seq <= 2500)]


def test_the_cold_part_is_scanned_by_spark_itself(
    world: _World, spark: "SparkSession", capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"server": world.url, "onDataLoss": "skip"}
    read_topic(spark, "eventful", columns=["seq", "data"], **options).explain()
    plan = capsys.readouterr().out
    assert "FileScan parquet" in plan
    assert "BatchScan driftq" in plan
    chosen = read_topic(spark, "eventful", columns=["seq"], tag="t4", endingSeq="1500", **options)
    assert chosen.count() == table(spark, "eventful", tag="t4", endingSeq="1500", **options).count() > 0


@pytest.mark.parametrize("setting", ["ignoreMissingFiles", "ignoreCorruptFiles"])
def test_a_cold_file_that_cannot_be_read_is_an_error_whatever_the_session_ignores(
    world: _World, spark: "SparkSession", setting: str
) -> None:
    """proves: G-IO-8"""
    manifest = world.manifest("eventful")
    cold = next(segment for segment in manifest.segments if segment.tier == "cold")
    assert manifest.cold_root is not None
    path = Path(manifest.cold_root, cold.file)
    away = path.with_suffix(".away")
    spark.conf.set(f"spark.sql.files.{setting}", "true")
    try:
        rows = read_topic(spark, "eventful", columns=["seq"], server=world.url, onDataLoss="skip")
        assert rows.count() > cold.live
        path.rename(away)
        if setting == "ignoreCorruptFiles":
            path.write_bytes(b"x" * 1000)
        with pytest.raises(Exception, match=path.name):
            rows.count()
    finally:
        away.rename(path)
        spark.conf.unset(f"spark.sql.files.{setting}")


def _pieces(world: _World, tier: str) -> tuple[Split, Piece]:
    manifest = world.manifest("eventful")
    (split,) = splits_of(manifest, 0, manifest.head, 10**6, [])
    return split, next(piece for piece in split.pieces if piece.segment is not None and piece.segment.tier == tier)


def _seqs(split: Split, piece: Piece) -> list[int]:
    return [int(seq) for batch in in_place.read(split, piece, ["seq"]) for seq in batch.column(0).to_pylist()]


@pytest.mark.parametrize("tier", ["hot", "cold"])
def test_a_file_is_read_only_if_it_shows_what_the_server_said(world: _World, tier: str) -> None:
    split, piece = _pieces(world, tier)
    assert piece.segment is not None
    assert len(_seqs(split, piece)) == piece.segment.live
    other = piece._replace(segment=piece.segment._replace(live=piece.segment.live - 1))
    with pytest.raises(in_place.Elsewhere):
        _seqs(split, other)


def test_a_directory_of_another_server_is_not_read(world: _World, tmp_path: Path) -> None:
    split, piece = _pieces(world, "hot")
    shutil.copytree(split.hot_root, tmp_path / "data")
    moved = split._replace(hot_root=str(tmp_path / "data"))
    assert len(_seqs(moved, piece)) > 0
    stranger = tmp_path / "stranger"
    shutil.copytree(split.hot_root, stranger)
    (stranger / ".driftq.id").write_text("0" * 32 + "\n", encoding="ascii")
    with pytest.raises(in_place.Elsewhere):
        _seqs(split._replace(hot_root=str(stranger)), piece)
    with pytest.raises(in_place.Elsewhere):
        _seqs(split._replace(hot_root=str(tmp_path / "nowhere")), piece)
