"""The engine's three times. A wrong step of the wall clock does no harm to any of them.

wall      The time of day, as the machine has it now. For deadlines that clients give, and for times that are shown.
engine    Milliseconds that run at the speed of the steady clock: no step of the wall clock changes them. Every
          duration is measured in them: leases, delays, windows, ages, timers. Stored moments too.
stamp     `$ts`, and the time of frames. It follows the wall clock and never goes back: while it is ahead of the wall
          clock it advances at half the speed of the steady clock.

How they relate
- `offset` is engine time minus wall time. It is 0 in a new data directory, and changes only when the wall clock is set.
  `Timeline` stores where stamps and engine time diverged, so that the age of a record is `now() - moment($ts)`.
- Both are logged (kind CLOCK, to every shard, before the first frame that was stamped after the change) and are part of
  checkpoints.

A start
- Engine time continues at wall time plus offset: the time that the server was down counts, as the wall clock shows it.
  If engine time would go back, it continues where it was. So the rest of a duration is never longer than the whole, and
  everything that had expired stays expired.
- With a TTL, `now` is logged up to `AHEAD_MS` in advance (kind TIME_SEEN), because records that a reader saw expire
  must stay expired after a crash. After a crash `now` begins at the logged moment and does not advance until engine
  time has reached it. Records and keys expire by `now`, leases and delays by `running`, which always advances.

Invariants
- `running`, `now` and the stamps never decrease, restarts included; `running() <= now() <= running() + AHEAD_MS`.
- `timeline.moment(stamp())` is `now()`. So records that a reader saw expire before a write have also expired by that
  write's own stamp, and replay, which knows only the stamps, removes the same records and gets the same floors.
- A stamp that was given is below every stamp of a later bend: no two moments far apart share a stamp.
"""

import logging
from collections.abc import Callable

from driftq.engine.timeline import CREEPS, FOLLOWS, STOPPED, ClockBody, Timeline, TimelinePoint
from driftq.model.units import NS_PER_MS
from driftq.system.clock import Clock

AHEAD_MS = 2000
"""How far in advance `now` is logged: two ticks. So a logged moment is valid until the next one is synced, and after a
config change there is a whole tick to log the first one.
"""
TOLD_MS = 1000
"""A difference between stamps and the wall clock above this many ms is logged."""

_LOOKS = 5
"""How often both clocks are read before a difference counts as a step; the thread may pause between readings."""
_SLEPT_NS = 100 * NS_PER_MS
"""A larger difference between the clock that counts suspends and the one that does not means a suspend."""

_log = logging.getLogger(__name__)


class EngineTime:
    """Wall time, engine time and stamps, in milliseconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.timeline = Timeline()
        self.changed: Callable[[], None] | None = None
        """Logs `state()`. Called before the first stamp is given that needs it."""
        self._unlogged = False
        self._steady_ns = clock.steady_ns()
        self._base_ns = 0
        """Engine time minus steady time, in ns."""
        self.offset = 0
        self._floor = 0
        """`now` is not below this; 0 when engine time has passed it."""
        self._stamped = 0
        self._creep = (0, 0)
        """While stamps do not follow the wall clock: the stamp and engine time at which half speed began."""
        self._plain = False
        """Whether the simple case holds: a stamp is engine time minus offset, and `now` is engine time."""
        self._told = False
        self._slept_ns = self._steady_ns - clock.monotonic_ns()
        self._begin()

    # Reading

    def wall(self) -> int:
        """Return the time of day: for deadlines that a client gave."""
        return self._clock.wall_ms()

    def running(self) -> int:
        """Return engine time: for durations that begin in this run, and for leases and delays."""
        return self._running_ns() // NS_PER_MS

    def now(self) -> int:
        """Return the moment that decides whether stored records and keys have expired."""
        running = self._running_ns() // NS_PER_MS
        return running if self._plain else self._judged(running)

    def shown(self, moment: int) -> int:
        """Return the time of day of a past or future moment of engine time, by the current wall clock."""
        return self._clock.wall_ms() + moment - self.running()

    def moment(self, wall: int) -> int:
        """Return the moment of engine time of a time of day."""
        return self.running() + wall - self._clock.wall_ms()

    def kept_from(self, age_ms: int) -> int:
        """Return the lowest stamp of records that are at most `age_ms` old; lower stamps are older."""
        return self.timeline.stamp(self.now() - age_ms)

    def age(self, stamp: int) -> int:
        """Return how long ago a stamp was given, in ms."""
        return max(0, self.now() - self.timeline.moment(stamp))

    def ahead(self) -> int:
        """Return the moment to log: until the next one is logged, expiry may be decided up to it."""
        return max(self._floor, self.running() + AHEAD_MS)

    @property
    def ahead_ms(self) -> int:
        """Return how many ms the next stamp will be ahead of the wall clock."""
        running = self._look()
        return max(0, self._creeping(running) - (running - self.offset))

    def stamp(self) -> int:
        """Return the stamp for records that are stored now."""
        running = self._look()
        if self._plain:
            self._stamped = running - self.offset
            return self._stamped
        now = self._judged(running)
        wall, creeping = running - self.offset, self._creeping(running)
        timeline, last = self.timeline, self._stamped
        follows = wall > creeping or (wall == creeping and timeline.pace == FOLLOWS)
        stamp = wall if follows else creeping
        pace = STOPPED if now > running else FOLLOWS if follows else CREEPS
        if timeline.pace != pace or timeline.moment(stamp) != now:
            stamp = max(stamp, last + 1)
            if pace == FOLLOWS and stamp > wall:
                pace = CREEPS
            timeline.add(TimelinePoint(stamp, max(now, running), pace))
            self._unlogged = True
            self._creep = (stamp, running)
        elif follows:
            self._creep = (stamp, running)
        self._stamped = stamp
        if self._unlogged:
            self.log()
        last_point = timeline.points[-1]
        straight = last_point.moment - last_point.stamp == self.offset
        self._plain = pace == FOLLOWS and straight and not self._floor and not self._unlogged
        return stamp

    def look(self) -> bool:
        """Check, once a second, whether the wall clock was set, and whether stamps are ahead of it.

        Returns whether the machine was suspended since the last call; then timers of the loop are late.
        """
        ahead_ms = self.ahead_ms
        told, self._told = self._told, ahead_ms > TOLD_MS
        if self._told and not told:
            _log.warning(
                "$ts is %d ms ahead of the wall clock and advances at half speed until the wall clock has caught up",
                ahead_ms,
            )
        elif told and not self._told:
            _log.warning("the wall clock has caught up: $ts is at most %d ms ahead of it", TOLD_MS)
        if self._unlogged:
            self.log()
        slept_ns, self._slept_ns = self._slept_ns, self._clock.steady_ns() - self._clock.monotonic_ns()
        return self._slept_ns - slept_ns > _SLEPT_NS

    # Restarts

    def state(self) -> ClockBody:
        """Return the state that a restart needs."""
        return ClockBody(self.running(), self.offset, self._stamped, list(self.timeline.points))

    def restore(self, state: ClockBody) -> None:
        """Load the state of an earlier run, from a checkpoint or the log; the newest one counts."""
        if state.moment >= self._reached:
            self._reached = state.moment
            self.timeline.restore(state.points)
            self.offset = state.offset
            self._stamped = max(self._stamped, state.stamp)

    def found_stamp(self, stamp: int) -> None:
        """Note that an earlier run gave this stamp."""
        self._stamped = max(self._stamped, stamp)

    def found_note(self, moment: int) -> None:
        """Note that an earlier run decided expiry up to this moment, or was about to."""
        self._noted = max(self._noted, moment)

    def resume(self, *, expiring: bool) -> None:
        """Continue where the earlier runs ended. Moments logged in advance matter only if something expires."""
        noted = self._noted if expiring else 0
        last = self.timeline.moment(self._stamped)
        known = last if self.timeline.known(self._stamped) else last - AHEAD_MS
        self._reached = max(self._reached, known, noted - AHEAD_MS)
        self._begin()
        self._floor = max(last, noted)
        self._creep = (self._stamped, self.running())
        if self.timeline.pace == STOPPED:
            self.stamp()  # end the stop, or continue it at the new moment

    def log(self) -> None:
        """Log the state, if the log is open already."""
        if self.changed is not None:
            self._unlogged = False
            self.changed()

    def not_logged(self) -> None:
        """Log the state again with the next stamp, because the log refused it."""
        self._unlogged = True
        self._plain = False

    _reached = 0
    """Engine time that an earlier run is known to have reached."""
    _noted = 0
    """The moment up to which an earlier run may have decided expiry."""

    def _begin(self) -> None:
        between_ns = min(-self._clock.steady_ns() + self._clock.wall_ns() for _ in range(_LOOKS))
        self._steady_ns = self._clock.steady_ns()
        missing_ns = (self._reached - self.offset) * NS_PER_MS - (self._steady_ns + between_ns)
        if missing_ns > 0:
            self.offset -= -missing_ns // NS_PER_MS
            self._unlogged = True
        self._base_ns = between_ns + self.offset * NS_PER_MS
        self._plain = False

    # The clocks

    def _running_ns(self) -> int:
        steady_ns = self._clock.steady_ns()
        if steady_ns < self._steady_ns:
            self._base_ns += self._steady_ns - steady_ns  # a faulty steady clock went back; engine time does not
        self._steady_ns = steady_ns
        return steady_ns + self._base_ns

    def _judged(self, running: int) -> int:
        if self._floor:
            if running <= self._floor:
                return self._floor
            self._floor = 0
            if self.timeline.pace == STOPPED:
                self.stamp()
        last = self.timeline.points[-1]
        return running - ((running - last.moment) & 1) if last.pace == CREEPS else running

    def _creeping(self, running: int) -> int:
        """Return the lowest stamp that may be given now, which may equal the last one."""
        if self.timeline.pace == FOLLOWS:
            return self._stamped
        stamp, since = self._creep
        return stamp + (running - since) // 2

    def _look(self) -> int:
        """Read both clocks and update `offset`. Returns engine time."""
        running_ns, off_ns = self._compare()
        if not -NS_PER_MS < off_ns < NS_PER_MS:
            for _ in range(_LOOKS):
                running_ns, again_ns = self._compare()
                off_ns = min(off_ns, again_ns, key=abs)
            if not -NS_PER_MS < off_ns < NS_PER_MS:
                self._stepped(off_ns)
        return running_ns // NS_PER_MS

    def _compare(self) -> tuple[int, int]:
        """Return engine time, and how many ns the wall clock differs from its expected value."""
        running_ns = self._running_ns()
        return running_ns, self._clock.wall_ns() - (running_ns - self.offset * NS_PER_MS)

    def _stepped(self, off_ns: int) -> None:
        """Adjust `offset` after the wall clock was set."""
        off_ms = -(-off_ns // NS_PER_MS)
        self.offset -= off_ms
        self._unlogged = True
        self._plain = False
        if abs(off_ms) > TOLD_MS:
            _log.warning("the wall clock was set by %+d ms; durations are not affected", off_ms)
