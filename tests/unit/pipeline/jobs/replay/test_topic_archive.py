"""What a lake has of one topic. A real directory, as Delta knows no other."""

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs.replay.replay_plan import SeqBounds
from driftq.pipeline.jobs.replay.topic_archive import TopicArchive, as_path
from driftq.pipeline.lake.delta_tables import Lake, LakeTable, WriterBatch
from driftq.pipeline.lake.table_layout import BAD_RECORDS, GAPS
from driftq.pipeline.source.split_plan import SeqGap

AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def fill(table: LakeTable, topic: str, seqs: list[int], *, epoch: int = 1, batch: int = 0, data: str = "1") -> None:
    """Records of a topic in a table."""
    own = {"topic": topic, "epoch": epoch, "ts": AT, "day": AT.date(), "data": data}
    rows = [{name: own.get(name) for name in table.schema.names} | {"seq": seq} for seq in seqs]
    table.append(pa.Table.from_pylist(rows, table.schema), WriterBatch("writer", batch))


def lose(lake: Lake, topic: str, first: int, last: int, *, epoch: int = 1) -> None:
    """A gap that an archive was told of."""
    row = {"topic": topic, "epoch": epoch, "gap_from": first, "gap_to": last, "reason": "cap", "seen_ts": AT}
    table = lake.table("gaps", GAPS)
    table.append(pa.Table.from_pylist([row], GAPS), WriterBatch(topic, first))


def test_seqs_come_from_every_table_that_may_have_them(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    fill(lake.topic("t"), "t", [1, 2])
    fill(lake.topic("t"), "t", [1], epoch=2, batch=1)
    fill(lake.shared("all"), "t", [3, 4])
    fill(lake.shared("all"), "other", [99], batch=1)
    fill(lake.topic("other"), "other", [98])
    fill(lake.table("bad_records", BAD_RECORDS), "t", [5])
    lose(lake, "t", 6, 7)
    lose(lake, "other", 8, 9)
    archive = TopicArchive(str(tmp_path), "t")
    found = archive.of(1)
    assert found is not None
    assert (found.held, found.gaps, found.seqs.repeated) == (SeqBounds(1, 5), (SeqGap(6, 7, "cap"),), 0)
    assert archive.newest() == 2
    nothing = archive.of(3)
    assert nothing is not None
    assert nothing.held == SeqBounds(1, 0)
    assert not [path for path in archive.paths() if "topics/other" in path]


def test_records_that_two_tables_have_are_known_to_be_there_twice(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for table in (lake.topic("t"), lake.shared("all")):
        fill(table, "t", [1, 2])
    found = TopicArchive(str(tmp_path), "t").of(1)
    assert found is not None
    assert (len(found.seqs), found.seqs.repeated) == (2, 2)


def test_where_there_is_no_lake_there_is_nothing(tmp_path: Path) -> None:
    for archive in (TopicArchive(None, "t"), TopicArchive(str(tmp_path / "absent"), "t")):
        assert (archive.paths(), archive.of(1), archive.newest(), archive.record_bytes()) == ([], None, None, 0.0)


def test_what_was_archived_meanwhile_is_found_when_one_looks_again(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    fill(lake.topic("t"), "t", [1])
    archive = TopicArchive(str(tmp_path), "t")
    assert archive.newest() == 1
    fill(lake.topic("t"), "t", [1], epoch=2, batch=1)
    assert archive.newest() == 1
    archive.refresh()
    assert archive.newest() == 2


def test_the_size_of_records_is_that_of_some(tmp_path: Path) -> None:
    fill(Lake(tmp_path).topic("t"), "t", list(range(1, 51)), data="x" * 1000)
    assert TopicArchive(str(tmp_path), "t").record_bytes() == pytest.approx(1000, rel=0.05)


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    table = Lake(tmp_path).topic("t")
    fill(table, "t", [1])
    Path(table.files()[0]).unlink()
    with pytest.raises(PipelineError, match="a file of the archive of topic 't' is missing"):
        TopicArchive(str(tmp_path), "t").of(1)


def test_a_path_is_no_pattern() -> None:
    assert as_path(r"/lake [2026]/{a}*?\x") == r"/lake \[2026\]/\{a\}\*\?\\x"
