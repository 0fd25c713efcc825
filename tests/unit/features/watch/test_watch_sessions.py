"""Sessions: their names, how many, and how long."""

import re

import pytest

from driftq.errors import ThrottledError
from driftq.features.watch.position import Options, ReadPosition
from driftq.features.watch.watch_sessions import SESSION_TTL_MS, Session, Sessions
from driftq.testing import ManualClock, SeededEntropy


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def sessions(clock: ManualClock) -> Sessions:
    return Sessions(clock, SeededEntropy(1), sessions_max=2)


def made(sessions: Sessions) -> Session:
    return sessions.create(None, {"t": ReadPosition(5, 1, 9)}, Options(), 1000)


def test_a_wid_is_22_characters_and_never_the_same(sessions: Sessions) -> None:
    """inv: 61"""
    one, two = made(sessions).wid, made(sessions).wid
    assert re.fullmatch(r"wid_[A-Za-z0-9_-]{22}", one)
    assert one != two


def test_a_session_is_collected_after_its_time_and_not_before(sessions: Sessions, clock: ManualClock) -> None:
    wid = made(sessions).wid
    clock.advance(SESSION_TTL_MS)
    assert sessions.find(wid) is not None
    clock.advance(1)
    assert sessions.find(wid) is None
    assert len(sessions) == 0


def test_an_open_stream_keeps_its_session_and_the_time_begins_when_it_ends(
    sessions: Sessions, clock: ManualClock
) -> None:
    session = made(sessions)
    sessions.opened(session)
    sessions.opened(session)
    clock.advance(10 * SESSION_TTL_MS)
    sessions.closed(session)
    assert sessions.find(session.wid) is session
    sessions.closed(session)
    clock.advance(SESSION_TTL_MS)
    assert sessions.find(session.wid) is session
    clock.advance(1)
    assert sessions.find(session.wid) is None


def test_one_session_too_many_is_refused_until_another_is_collected(sessions: Sessions, clock: ManualClock) -> None:
    made(sessions)
    clock.advance(10)
    made(sessions)
    with pytest.raises(ThrottledError) as refused:
        made(sessions)
    assert refused.value.detail == {"limit": "max_watch_sessions", "max": 2}
    clock.advance(SESSION_TTL_MS)
    made(sessions)
    assert len(sessions) == 2


def test_a_rewind_goes_back_and_never_forward(sessions: Sessions) -> None:
    """inv: 56"""
    session = made(sessions)
    session.rewind({"t": 7, "stranger": 1})
    assert session.cursors() == {"t": 5}
    session.rewind({"t": 2})
    assert session.cursors() == {"t": 2}
