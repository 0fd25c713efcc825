"""Batches: one rendering for all who ask for the same, and never an old one."""

from typing import Any

import pytest

from driftq.features.watch.position import Options
from driftq.features.watch.rendered_pages import RenderedPage, RenderedPages
from tests.unit.features.watch.outlet import FeedRig


@pytest.fixture
def rig() -> FeedRig:
    rig = FeedRig()
    rig.put("t")
    return rig


def read(rig: FeedRig, batches: RenderedPages, cursor: int = 0, **options: Any) -> RenderedPage:
    found = batches.read(rig.topic("t"), cursor, None, Options(**options))
    assert isinstance(found, RenderedPage)
    return found


def test_a_hundred_watchers_of_one_topic_cost_one_rendering_per_write(rig: FeedRig) -> None:
    outlets = [rig.feed("t")[1] for _ in range(100)]
    for number in range(1, 6):
        rig.write("t", number)
        for outlet in outlets:
            assert ("record", "t", [number], number - 1, number) in outlet.taken()
    assert rig.watch.batches.rendered == 5


def test_the_same_question_has_the_same_answer_until_the_topic_changes(rig: FeedRig) -> None:
    batches = RenderedPages(rig.engine)
    rig.write("t", 1, 2, 3, tags=["a", "b", "c"])
    first = read(rig, batches)
    assert read(rig, batches) is first
    rig.delete("t", match="b")
    second = read(rig, batches)
    assert (first.size, second.size) == (3, 2)
    rig.write("t", 4)
    assert read(rig, batches).size == 3


def test_what_retention_took_is_not_told_from_what_was_kept() -> None:
    rig = FeedRig()
    rig.put("t", ttl_ms=1000)
    rig.write("t", 1)
    batches = RenderedPages(rig.engine)
    assert read(rig, batches).size == 1
    rig.clock.advance(1001)
    found = read(rig, batches)
    assert found.size == 0
    assert found.page.tombstone is not None


def test_other_fields_limits_and_nodes_are_other_questions(rig: FeedRig) -> None:
    batches = RenderedPages(rig.engine)
    rig.write("t", 1, 2, tags=["a", "b"], batch_node="n")
    texts = {
        read(rig, batches).records,
        read(rig, batches, data=False).records,
        read(rig, batches, tags=True).records,
        read(rig, batches, limit=1).records,
        read(rig, batches, nodes=frozenset([b"n"])).records,
    }
    assert len(texts) == 5


def test_nodes_make_no_difference_where_the_topic_does_not_filter() -> None:
    rig = FeedRig()
    rig.put("t", dedupe_node=False)
    rig.write("t", 1, batch_node="n")
    batches = RenderedPages(rig.engine)
    assert read(rig, batches, nodes=frozenset([b"n"])) is read(rig, batches)


def test_what_is_kept_is_bounded(rig: FeedRig) -> None:
    batches = RenderedPages(rig.engine, bytes_max=4000)
    rig.write("t", *["x" * 90] * 10)
    for _ in range(2):
        for cursor in range(10):
            assert read(rig, batches, cursor, limit=5).size == min(5, 10 - cursor)
    assert batches.rendered > 10
    assert batches.kept_bytes <= 4000


def test_a_batch_holds_no_blocks(rig: FeedRig) -> None:
    rig.write("t", 1)
    assert read(rig, RenderedPages(rig.engine)).page.slices == []
