"""Calls that do not return: who waits for how long, and what is refused meanwhile."""

import errno
import threading
from collections.abc import Iterator

import pytest

from driftq.system.hang_guard import STUCK_MAX, Patience

SOON_S = 0.02
LONG_S = 30.0


class Hang:
    """Calls that return when they are let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = 0
        self.closed = threading.Event()

    def __call__(self) -> "Hang":
        self.begun += 1
        assert self.go.wait(LONG_S)
        return self

    def close(self) -> None:
        """What becomes of a file that was opened too late."""
        self.closed.set()


@pytest.fixture
def hang() -> Iterator[Hang]:
    made = Hang()
    yield made
    made.go.set()


class Hours:
    """A clock that stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr("driftq.system.hang_guard.time.monotonic", lambda: self.now_s)


def test_a_call_that_returns_gives_what_it_gives_or_raises_what_it_raises() -> None:
    patience = Patience()
    assert patience.call(lambda: 7, "/cold/x") == 7
    with pytest.raises(FileNotFoundError):
        patience.call(lambda: open("/no/such/file"), "/cold/x")  # noqa: SIM115
    assert patience.stuck == 0


def test_a_call_that_hangs_is_an_error_and_others_are_refused_at_once(
    hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    Hours(monkeypatch)
    patience = Patience(SOON_S)
    with pytest.raises(TimeoutError) as refused:
        patience.call(hang, "/cold/x")
    assert (refused.value.errno, refused.value.filename, patience.stuck) == (errno.ETIMEDOUT, "/cold/x", 1)
    never = Hang()
    with pytest.raises(TimeoutError):
        patience.call(never, "/cold/y", changes=True)
    assert never.begun == 0
    hang.go.set()
    assert hang.closed.wait(LONG_S), "what came too late is closed"
    assert patience.call(lambda: 7, "/cold/x") == 7
    assert patience.stuck == 0


def test_now_and_then_one_call_finds_out_whether_it_still_hangs(hang: Hang, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Hours(monkeypatch)
    patience = Patience(SOON_S)
    for number in range(1, STUCK_MAX + 3):
        with pytest.raises(TimeoutError):
            patience.call(hang, "/cold/x")
        with pytest.raises(TimeoutError):
            patience.call(hang, "/cold/x")
        assert hang.begun == patience.stuck == min(number, STUCK_MAX)
        clock.now_s += 2 * SOON_S


def test_no_change_begins_while_another_one_is_stuck(hang: Hang, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Hours(monkeypatch)
    patience = Patience(SOON_S)
    with pytest.raises(TimeoutError):
        patience.call(hang, "/cold/x", changes=True)
    clock.now_s += 2 * SOON_S
    with pytest.raises(TimeoutError):
        patience.call(hang, "/cold/x", changes=True)
    assert hang.begun == 1
    assert patience.call(lambda: 7, "/cold/x") == 7, "a read may try"


def test_a_thread_in_a_hurry_waits_shortly_and_not_at_all_while_a_call_is_stuck(hang: Hang) -> None:
    patience = Patience(LONG_S)
    patience.hurry(SOON_S)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            patience.call(hang, "/cold/x")
    assert hang.begun == 1


def test_what_nobody_waits_for_is_done_though_others_are_stuck(hang: Hang) -> None:
    patience = Patience(SOON_S)
    with pytest.raises(TimeoutError):
        patience.call(hang, "/cold/x")
    done = threading.Event()
    patience.leave(done.set)
    assert done.wait(LONG_S)
