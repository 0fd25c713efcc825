"""The timers of a stream: heartbeats, and clients that do not read."""

from driftq.http.event_stream import Heartbeat, StallTimer
from driftq.testing import KeptSink, ManualClock, ManualRuntime

LOOK_MS, STALL_MS = 250, 1000


class Stalling:
    """A stall timer, and the results of its checks."""

    def __init__(self, unsent: int | None = 100) -> None:
        self.runtime = ManualRuntime(ManualClock())
        self.sink = KeptSink()
        self.sink.room, self.sink.unsent = False, 100
        self.looks: list[bool] = []
        self.timer = StallTimer(self.runtime, LOOK_MS, STALL_MS, self.looks.append)
        self.timer.start(self.sink, unsent)

    def advance(self, ms: int) -> list[bool]:
        """Return the results of the checks of the next ms."""
        self.runtime.advance(ms)
        looks = self.looks.copy()
        self.looks.clear()
        return looks


def test_a_client_that_reads_nothing_stalls_once() -> None:
    stalling = Stalling()
    assert stalling.advance(STALL_MS - 1) == [False] * 3
    assert stalling.advance(1) == [True]
    assert stalling.advance(10 * STALL_MS) == []


def test_without_a_first_figure_the_time_counts_from_the_first_check() -> None:
    stalling = Stalling(unsent=None)
    assert stalling.advance(STALL_MS + LOOK_MS - 1) == [False] * 4
    assert stalling.advance(1) == [True]


def test_each_read_starts_the_time_again() -> None:
    stalling = Stalling()
    for left in (99, 50, 1):
        assert stalling.advance(STALL_MS - LOOK_MS) == [False] * 3
        stalling.sink.unsent = left
        assert stalling.advance(LOOK_MS) == [False]
    assert stalling.advance(STALL_MS) == [False] * 3 + [True]


def test_bytes_that_are_added_are_no_progress() -> None:
    stalling = Stalling()
    stalling.sink.unsent = 200
    assert stalling.advance(STALL_MS) == [False] * 3 + [True]


def test_checks_end_with_room_and_start_again_later() -> None:
    stalling = Stalling()
    assert stalling.advance(STALL_MS - LOOK_MS) == [False] * 3
    stalling.sink.room = True
    assert stalling.advance(STALL_MS) == []
    stalling.sink.room = False
    assert stalling.advance(STALL_MS) == []
    stalling.timer.start(stalling.sink, 100)
    assert stalling.advance(STALL_MS) == [False] * 3 + [True]


def test_a_second_start_changes_nothing_and_a_stop_ends_the_checks() -> None:
    stalling = Stalling()
    stalling.advance(STALL_MS - 1)
    stalling.timer.start(stalling.sink, 100)
    assert stalling.advance(1) == [True]
    stalling = Stalling()
    stalling.advance(STALL_MS - 1)
    stalling.timer.stop()
    assert stalling.advance(10 * STALL_MS) == []


def test_a_heartbeat_comes_after_each_interval_in_which_nothing_was_sent() -> None:
    clock = ManualClock()
    runtime, beats = ManualRuntime(clock), []
    heart = Heartbeat(runtime, clock, 1000, lambda: beats.append(clock.monotonic_ns() // 1_000_000))
    began = clock.monotonic_ns() // 1_000_000
    heart.start()
    runtime.advance(700)
    heart.spoke()
    runtime.advance(2000)
    heart.stop()
    runtime.advance(5000)
    assert [beat - began for beat in beats] == [1700, 2700]
