"""Which moment of engine time each stamp (`$ts`) belongs to.

Engine time (`engine/engine_time`) runs at the speed of the steady clock and never jumps. Stamps follow the wall clock,
which does. A timeline is a list of points, one for each change of their relation. A point has a stamp, the moment at
which that stamp was given, and a pace: milliseconds of engine time per millisecond of stamps from there on. So the age
of a record is known exactly, however often the wall clock was set.

    pace 1  stamps follow the wall clock
    pace 2  stamps are ahead of the wall clock and advance at half speed
    pace 0  engine time does not advance: just after a crash, until it reaches the moment that was logged in advance

Invariants
- Stamps strictly increase from point to point, and moments do not decrease.
- `moment` is non-decreasing in the stamp. For every stamp that was given, it is the moment at which it was given.
- To add a point changes no moment of an earlier stamp. So it does not matter in which order log files are read.

Below the first point, stamps and moments differ by a constant. When there are `POINTS_MAX` points, the oldest is
removed; records stored before it get their age as if the wall clock had not been set before.
"""

from bisect import bisect_left, bisect_right

from msgspec import Struct

POINTS_MAX = 256
STOPPED, FOLLOWS, CREEPS = 0, 1, 2


class TimelinePoint(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The moment at which a stamp was given, and the engine time in ms per millisecond of stamps from it on."""

    stamp: int
    moment: int
    pace: int


class ClockBody(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Body of a CLOCK frame, and part of checkpoints: how engine time, wall clock and stamps relate."""

    moment: int
    """Engine time when this body was made."""
    offset: int
    """Engine time minus wall time, in ms."""
    stamp: int
    """The last stamp that was given."""
    points: list[TimelinePoint]


class Timeline:
    """The points, oldest first. A timeline without a change has one point, at which stamp and moment are equal."""

    __slots__ = ("_moments", "_stamps", "points")

    def __init__(self) -> None:
        self.restore([])

    def restore(self, points: list[TimelinePoint]) -> None:
        """Replace all points by those of another timeline."""
        self.points = list(points) or [TimelinePoint(0, 0, FOLLOWS)]
        self._stamps = [point.stamp for point in self.points]
        self._moments = [point.moment for point in self.points]

    def add(self, point: TimelinePoint) -> None:
        """Append a point. Its stamp must be above every stamp given so far."""
        assert point.stamp > self._stamps[-1]
        assert point.moment >= self._moments[-1]
        self.restore([*self.points, point][-POINTS_MAX:])

    @property
    def pace(self) -> int:
        """Return the pace after the newest point."""
        return self.points[-1].pace

    def moment(self, stamp: int) -> int:
        """Return the engine time, in ms, at which a record with this stamp (`$ts`) was stored."""
        place = bisect_right(self._stamps, stamp) - 1
        if place < 0:
            return self._moments[0] - self._stamps[0] + stamp
        point = self.points[place]
        found = point.moment + point.pace * (stamp - point.stamp)
        return found if place + 1 == len(self.points) else min(found, self._moments[place + 1])

    def stamp(self, moment: int) -> int:
        """Return the lowest stamp that was given at or after a moment. Lower stamps are older than the moment."""
        place = bisect_left(self._moments, moment) - 1
        if place < 0:
            return self._stamps[0] - self._moments[0] + moment
        point = self.points[place]
        ago, last = moment - point.moment, place + 1 == len(self.points)
        if not point.pace:
            return point.stamp + ago if last else self._stamps[place + 1]
        found = point.stamp - (-ago // point.pace)
        return found if last else min(found, self._stamps[place + 1])

    def known(self, stamp: int) -> bool:
        """Whether engine time advanced when a stamp was given, so that the clock had reached its moment."""
        place = bisect_right(self._stamps, stamp) - 1
        return place < 0 or self.points[place].pace != STOPPED
