"""Encodes event streams (http-v0 §12.3), and keeps the timers of a stream: heartbeats, and clients that do not read.

A line is `field: value` with one space and LF. An event ends with an empty line and has one line of data: compact JSON,
which contains no line breaks.
"""

from collections.abc import Callable

from driftq.http.answer import Sink
from driftq.model.units import NS_PER_MS
from driftq.system.clock import Clock
from driftq.system.runtime import Runtime, Timer

RETRY = b"retry: 2000\n\n"
HEADERS = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))
END = b"\n\n"
_NOT_KNOWN = 1 << 62


def head(event: bytes, event_id: bytes | None = None) -> bytes:
    """Return the bytes of an event up to its data."""
    if event_id is None:
        return b"event: %b\ndata: " % event
    return b"id: %b\nevent: %b\ndata: " % (event_id, event)


def frame(event: bytes, data: bytes, event_id: bytes | None = None) -> bytes:
    """Return the bytes of a complete event."""
    return b"%b%b\n\n" % (head(event, event_id), data)


def heartbeat(now_ms: int) -> bytes:
    """Return a comment line that shows both sides that the connection is alive."""
    return b": hb %d\n\n" % now_ms


class Heartbeat:
    """Calls `beat` after every interval in which nothing was sent."""

    def __init__(self, runtime: Runtime, clock: Clock, interval_ms: int, beat: Callable[[], None]) -> None:
        self._runtime = runtime
        self._clock = clock
        self._interval_ns = interval_ms * NS_PER_MS
        self._beat = beat
        self._spoke_ns = clock.monotonic_ns()
        self._timer: Timer | None = None

    def start(self) -> None:
        """Start the first interval now."""
        self._wait(self._interval_ns)

    def spoke(self) -> None:
        """Restart the interval because something was sent. Only notes the time; the timer checks it when it fires."""
        self._spoke_ns = self._clock.monotonic_ns()

    def stop(self) -> None:
        """Stop calling `beat`; cancels the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self, delay_ns: int) -> None:
        self._timer = self._runtime.later(-(-delay_ns // NS_PER_MS), self._fire)

    def _fire(self) -> None:
        left_ns = self._spoke_ns + self._interval_ns - self._clock.monotonic_ns()
        if left_ns <= 0:
            self.spoke()
            self._wait(self._interval_ns)
            self._beat()
        else:
            self._wait(left_ns)


class StallTimer:
    """Checks whether a client reads, every `look_ms` from `start` until its sink has room."""

    def __init__(self, runtime: Runtime, look_ms: int, stall_ms: int, looked: Callable[[bool], None]) -> None:
        """`looked` is called at each check without room; its argument is whether nothing was read for `stall_ms`."""
        self._runtime = runtime
        self._look_ms = look_ms
        self._stall_ms = stall_ms
        self._looked = looked
        self._timer: Timer | None = None
        self._stalled_ms = 0
        self._unsent = 0

    def start(self, sink: Sink, unsent: int | None = None) -> None:
        """Start checking, unless it has started; without `unsent`, the first check cannot see a stall."""
        if self._timer is None:
            self._stalled_ms = 0
            self._unsent = _NOT_KNOWN if unsent is None else unsent
            self._wait(sink)

    def stop(self) -> None:
        """Stop checking until the next start."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, sink: Sink) -> None:
        self._timer = self._runtime.later(self._look_ms, lambda: self._look(sink))

    def _look(self, sink: Sink) -> None:
        self._timer = None
        if sink.room:
            return
        self._stalled_ms = 0 if sink.unsent < self._unsent else self._stalled_ms + self._look_ms
        self._unsent = sink.unsent
        stalled = self._stalled_ms >= self._stall_ms
        if not stalled:
            self._wait(sink)
        self._looked(stalled)
