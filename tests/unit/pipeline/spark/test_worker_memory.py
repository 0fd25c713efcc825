"""Spark's Python workers: what is loaded is left alone by the garbage collector."""

import gc
from collections.abc import Iterator

import pytest
from pyspark import TaskContext

from driftq.pipeline.spark.worker_memory import settle


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    gc.unfreeze()  # other tests of this process may have frozen something
    yield
    gc.unfreeze()


def test_what_a_worker_has_loaded_is_not_collected_over_after_every_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", object)
    settle()
    frozen = gc.get_freeze_count()
    settle()
    assert frozen > 1000
    assert gc.get_freeze_count() == frozen


def test_the_collector_is_left_alone_where_no_task_runs() -> None:
    settle()
    assert gc.get_freeze_count() == 0
