"""Whose turn it is: streams that have something to say are served one step at a time, by the bands of their topics.

A loop turn serves for so many bytes or steps and then lets everybody else run. Under pressure the first step waits for
a moment, so that what comes meanwhile goes out with it.
"""

from typing import Protocol

from driftq.engine.engine import Engine
from driftq.engine.load.pressure import GATHER_MS, Level
from driftq.engine.load.priority import Bands
from driftq.system.clock import Clock
from driftq.system.runtime import Runtime

_TURN_BYTES = 1 << 20
_TURN_STEPS = 64
_NS_PER_MS = 1_000_000


class Served(Protocol):
    """Somebody who takes turns."""

    def step(self) -> int:
        """Do one piece of work. Returns what it cost, in bytes; who wants more asks for another turn."""
        ...


class Turns:
    """Everybody who is waiting for one."""

    def __init__(self, engine: Engine, runtime: Runtime, clock: Clock) -> None:
        self._engine = engine
        self._runtime = runtime
        self._clock = clock
        self._bands: Bands[Served] = Bands()
        self._scheduled = False
        self._moment_ms = 0

    @property
    def moment_ms(self) -> int:
        """When the turn began that is under way, or was first asked for: one look at the clock for all who take it."""
        if not self._scheduled:
            self._moment_ms = self._clock.monotonic_ns() // _NS_PER_MS
        return self._moment_ms

    def ask(self, one: Served, priority: int) -> None:
        """Be served once, by and by."""
        self._bands.add(one, priority, self.moment_ms)
        if not self._scheduled:
            self._scheduled = True
            if self._engine.pressure.level >= Level.PRESSED:
                self._runtime.later(GATHER_MS, self._serve)
            else:
                self._runtime.soon(self._serve)

    def _serve(self) -> None:
        spent = steps = 0
        now_ms = self._moment_ms = self._clock.monotonic_ns() // _NS_PER_MS
        try:
            while self._bands and spent < _TURN_BYTES and steps < _TURN_STEPS:
                cost = self._bands.take(now_ms).step()
                self._bands.spend(cost)
                spent += cost
                steps += 1
        finally:
            # Whatever became of one of them, the others have their turns.
            self._scheduled = bool(self._bands)
            if self._scheduled:
                self._runtime.soon(self._serve)
