"""Turns: streams with something to send are served step by step, in the order of their topics' priority bands.

One turn of the event loop serves at most `_TURN_BYTES` bytes or `_TURN_STEPS` steps, and then lets other work run.
When the server is under pressure, the first step waits for `GATHER_MS`, so that later requests share it.
"""

from typing import Protocol

from driftq.engine.engine import Engine
from driftq.engine.load.pressure import GATHER_MS, Level
from driftq.engine.load.priority import Bands
from driftq.model.units import NS_PER_MS
from driftq.system.clock import Clock
from driftq.system.runtime import Runtime

_TURN_BYTES = 1 << 20
_TURN_STEPS = 64


class Served(Protocol):
    """A stream, or a group of streams, that is served in turns."""

    def step(self) -> int:
        """Do one piece of work and return its cost in bytes. If more is left, request another turn."""
        ...


class Turns:
    """The streams that wait for a turn."""

    def __init__(self, engine: Engine, runtime: Runtime, clock: Clock) -> None:
        self._engine = engine
        self._runtime = runtime
        self._clock = clock
        self._bands: Bands[Served] = Bands()
        self._scheduled = False
        self._moment_ms = 0

    @property
    def moment_ms(self) -> int:
        """When the current turn began, or the wait for it, in monotonic ms: one clock call serves all streams."""
        if not self._scheduled:
            self._moment_ms = self._clock.monotonic_ns() // NS_PER_MS
        return self._moment_ms

    def ask(self, one: Served, priority: int) -> None:
        """Schedule one step of `one`."""
        self._bands.add(one, priority, self.moment_ms)
        if not self._scheduled:
            self._scheduled = True
            if self._engine.pressure.level >= Level.PRESSED:
                self._runtime.later(GATHER_MS, self._serve)
            else:
                self._runtime.soon(self._serve)

    def _serve(self) -> None:
        spent = steps = 0
        now_ms = self._moment_ms = self._clock.monotonic_ns() // NS_PER_MS
        try:
            while self._bands and spent < _TURN_BYTES and steps < _TURN_STEPS:
                cost = self._bands.take(now_ms).step()
                self._bands.spend(cost)
                spent += cost
                steps += 1
        finally:
            # Even if one of them raised, the others get their turns.
            self._scheduled = bool(self._bands)
            if self._scheduled:
                self._runtime.soon(self._serve)
