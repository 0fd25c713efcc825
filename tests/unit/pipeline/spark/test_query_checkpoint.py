"""What a checkpoint of Spark says."""

from pathlib import Path

from driftq.pipeline.offsets import OffsetRange, TopicOffset
from driftq.pipeline.spark.query_checkpoint import has_begun, query_id, ranges_of_batch


def note(checkpoint: Path, batch: int, offset: str) -> None:
    (checkpoint / "offsets").mkdir(exist_ok=True)
    (checkpoint / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{offset}\n', encoding="utf-8")


def test_the_query_is_known_by_its_id(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"5cc7"}', encoding="utf-8")
    assert query_id(tmp_path) == "5cc7"


def test_a_batch_reads_from_where_the_one_before_ended(tmp_path: Path) -> None:
    note(tmp_path, 0, '{"orders":{"epoch":3,"seq":17,"began":5},"quiet":{"epoch":4,"seq":2,"began":0}}')
    note(tmp_path, 1, '{"orders":{"epoch":3,"seq":20,"began":5},"quiet":{"epoch":4,"seq":2,"began":0}}')
    assert ranges_of_batch(tmp_path, 0) == {
        "orders": OffsetRange("orders", 3, 5, 17),
        "quiet": OffsetRange("quiet", 4, 0, 2),
    }
    assert ranges_of_batch(tmp_path, 1) == {"orders": OffsetRange("orders", 3, 17, 20)}


def test_a_batch_knows_where_an_earlier_life_of_a_topic_was_left(tmp_path: Path) -> None:
    note(tmp_path, 0, '{"orders":{"epoch":3,"seq":17,"began":0}}')
    note(tmp_path, 1, '{"orders":{"epoch":9,"seq":2,"began":0}}')
    assert ranges_of_batch(tmp_path, 1) == {"orders": OffsetRange("orders", 9, 0, 2, missed=TopicOffset(3, 17, 0))}


def test_a_query_has_begun_when_its_first_batch_is_planned(tmp_path: Path) -> None:
    assert not has_begun(tmp_path)
    note(tmp_path, 0, "{}")
    assert has_begun(tmp_path)
