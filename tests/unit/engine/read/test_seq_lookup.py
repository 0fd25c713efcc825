"""Records by their seqs: against a plain list, over blocks, segments, holes and deletes."""

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftq.engine.read.seq_lookup import live_after, live_of, live_until, rows_of
from driftq.engine.read.topic_page import Missing, Slice
from driftq.model.topic_config import Durability
from driftq.testing import EngineRig

SEQS = st.lists(st.integers(1, 60), unique=True, max_size=20).map(sorted)


def data_of(slices: list[Slice]) -> dict[int, bytes]:
    return {part.source.first_seq + row: part.source.data(row, row + 1)[0] for part in slices for row in part.rows}


def filled(writes: list[int], deleted: list[int]) -> tuple[EngineRig, list[int]]:
    """A topic of such writes without such records, and the seqs that are left."""
    rig = EngineRig()
    rig.put("t")
    last = 0
    for count in writes:
        rig.write("t", *range(last + 1, last + 1 + count))
        last += count
    rig.run(rig.engine.delete_records("t", seqs=deleted))
    return rig, [seq for seq in range(1, last + 1) if seq not in deleted]


@given(st.lists(st.integers(1, 9), max_size=8), SEQS, SEQS, st.integers(0, 60), st.integers(1, 30))
def test_what_is_live_is_what_a_list_says(
    writes: list[int], deleted: list[int], asked: list[int], cursor: int, limit: int
) -> None:
    rig, live = filled(writes, deleted)
    topic = rig.topic("t")
    assert live_of(topic, asked) == [seq for seq in asked if seq in live]
    assert live_after(topic, cursor, limit) == [seq for seq in live if seq > cursor][:limit]
    assert live_until(topic, cursor) == [seq for seq in live if seq <= cursor]
    found = rows_of(topic, live_of(topic, asked), sys.maxsize)
    assert isinstance(found, list)
    assert data_of(found) == {seq: b"%d" % seq for seq in asked if seq in live}


@pytest.mark.parametrize(
    ("seqs", "budget", "expected"),
    [
        ([1, 2, 3, 4], 40, [1, 2, 3, 4]),
        ([1, 2, 3, 4], 39, [1, 2, 3]),
        ([1, 3, 4], 20, [1, 3]),
        ([2, 4, 20], 29, [2, 4]),
        ([2, 4, 20], 20, [2, 4]),
        ([5], 0, [5]),
        ([1, 20], 0, [1]),
    ],
)
def test_rows_end_with_the_budget_but_not_before_the_first(seqs: list[int], budget: int, expected: list[int]) -> None:
    rig = EngineRig()
    rig.put("t")
    for _ in range(20):
        rig.write("t", "x" * 8)
    found = rows_of(rig.topic("t"), seqs, budget)
    assert isinstance(found, list)
    assert list(data_of(found)) == expected


def test_seqs_in_a_hole_or_below_the_floor_are_left_out() -> None:
    rig = EngineRig()
    rig.put("t", Durability.DISK)
    rig.write("t", 1, 2)
    rig.runtime.advance(20)
    rig.crash()
    rig.write("t", 3)
    seq = rig.topic("t").head
    assert live_of(rig.topic("t"), [1, 2, 3, 4, seq, seq + 1]) == [1, 2, seq]
    rig.delete("t", before_seq=2)
    found: Any = rows_of(rig.topic("t"), [1, 2, 3, seq], sys.maxsize)
    assert list(data_of(found)) == [2, seq]


def test_a_block_that_is_not_in_memory_is_named() -> None:
    rig = EngineRig(cache_bytes=0)
    rig.put("t")
    for number in range(40):
        rig.write("t", number)
    rig.restart()
    rig.disk.cached = False
    found = rows_of(rig.topic("t"), [1, 30], sys.maxsize)
    assert isinstance(found, Missing)
    assert found.part.first_seq == 1
