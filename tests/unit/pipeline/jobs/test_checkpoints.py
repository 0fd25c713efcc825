"""What a checkpoint of Spark says."""

from pathlib import Path

from driftq.pipeline.jobs.checkpoints import Place, end_of_batch, query_id


def test_the_query_and_the_end_of_a_batch_are_read(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"5cc7"}', encoding="utf-8")
    (tmp_path / "offsets").mkdir()
    offsets = 'v1\n{"batchWatermarkMs":0}\n{"orders":{"epoch":3,"seq":17}}\n'
    (tmp_path / "offsets/4").write_text(offsets, encoding="utf-8")
    assert query_id(tmp_path) == "5cc7"
    assert end_of_batch(tmp_path, 4) == {"orders": Place(3, 17)}
