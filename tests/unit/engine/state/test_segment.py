"""The states of a segment, and the file work that may be under way in each of them."""

from collections.abc import Callable
from typing import Any

import pytest

from driftq.engine.state.segment import (
    ACTIVE,
    COLD,
    DROPPED,
    FLAG,
    MOVE,
    SEAL,
    SEAL_AWAY,
    SEALED,
    SEALING,
    WRITE,
    FileWork,
    Segment,
    SegmentPhase,
)
from driftq.storage.segments.block_index import BlockIndex

TRANSITIONS: dict[str, tuple[Callable[[Segment], None], set[SegmentPhase], SegmentPhase]] = {
    "close": (Segment.close, {ACTIVE}, SEALING),
    "seal": (lambda segment: segment.seal(7), {SEALING}, SEALED),
    "move": (lambda segment: segment.move(BlockIndex()), {SEALED}, COLD),
    "restore_hot": (lambda segment: segment.restore(cold=False), {ACTIVE}, SEALED),
    "restore_cold": (lambda segment: segment.restore(cold=True), {ACTIVE}, COLD),
    "drop": (lambda segment: segment.drop(given_up=False), {ACTIVE, SEALING, SEALED, COLD}, DROPPED),
}
"""For each transition: how it is made, the states it may start from, and the state it leads to."""

WAYS: dict[SegmentPhase, list[str]] = {
    ACTIVE: [],
    SEALING: ["close"],
    SEALED: ["close", "seal"],
    COLD: ["close", "seal", "move"],
    DROPPED: ["drop"],
}

MAY_BEGIN: dict[FileWork, tuple[set[SegmentPhase], set[FileWork]]] = {
    WRITE: ({ACTIVE, SEALING}, {WRITE, SEAL}),
    SEAL: ({SEALING}, {WRITE, SEAL}),
    SEAL_AWAY: ({SEALING}, {SEAL_AWAY}),
    FLAG: ({ACTIVE, SEALING, SEALED, COLD}, {FLAG, MOVE, SEAL_AWAY}),
    MOVE: ({SEALED}, {MOVE}),
}


def segment_in(state: SegmentPhase) -> Segment:
    segment = Segment(1)
    for step in WAYS[state]:
        TRANSITIONS[step][0](segment)
    assert segment.state is state
    return segment


@pytest.mark.parametrize("state", SegmentPhase)
@pytest.mark.parametrize("name", TRANSITIONS)
def test_a_transition_starts_from_its_states_and_is_refused_in_every_other(name: str, state: SegmentPhase) -> None:
    make, starts, end = TRANSITIONS[name]
    segment = segment_in(state)
    if state in starts:
        make(segment)
        assert segment.state is end
    else:
        with pytest.raises(AssertionError):
            make(segment)
        assert segment.state is state


@pytest.mark.parametrize("state", SegmentPhase)
@pytest.mark.parametrize("work", FileWork)
def test_file_work_begins_in_its_states_only(work: FileWork, state: SegmentPhase) -> None:
    segment = segment_in(state)
    assert segment.may_begin(work) is (state in MAY_BEGIN[work][0])
    if not segment.may_begin(work):
        with pytest.raises(AssertionError):
            segment.begin(work)
        assert not segment.work


@pytest.mark.parametrize("other", FileWork)
@pytest.mark.parametrize("work", FileWork)
def test_file_work_does_not_begin_during_work_that_excludes_it(work: FileWork, other: FileWork) -> None:
    together: set[Any] = MAY_BEGIN[work][0] & MAY_BEGIN[other][0]
    for state in together:
        segment = segment_in(state)
        segment.begin(other)
        assert segment.may_begin(work) is (other not in MAY_BEGIN[work][1])
        segment.end(other)
        assert segment.may_begin(work)


def test_work_that_is_not_under_way_cannot_end() -> None:
    with pytest.raises(AssertionError):
        segment_in(SEALED).end(MOVE)


def test_a_segment_is_sealed_in_either_tier_and_writing_covers_sealing() -> None:
    assert [segment_in(state).sealed for state in SegmentPhase] == [False, False, True, True, False]
    segment = segment_in(SEALING)
    assert not segment.writing
    segment.begin(SEAL)
    assert segment.writing


def test_a_dropped_segment_still_says_where_its_blocks_are_and_whether_its_files_are_kept() -> None:
    segment = segment_in(COLD)
    segment.drop(given_up=True)
    assert (segment.state, segment.cold, segment.given_up) == (DROPPED, True, True)
