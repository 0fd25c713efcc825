"""Watch sessions: the subscriptions and positions of a stream, kept between its connections (http-v0 §12.1, §12.5).

A session without an open stream is removed after `SESSION_TTL_MS` ms without use. Sessions are kept in memory and end
with the process.
"""

from base64 import urlsafe_b64encode

from driftq.errors import ThrottledError
from driftq.features.watch.position import Options, ReadPosition
from driftq.model.units import NS_PER_MS
from driftq.system.clock import Clock
from driftq.system.entropy import Entropy

SESSION_TTL_MS = 300_000
_WID_BYTES = 16


class Session:
    """The topics and options of one watch, and the position in each topic."""

    def __init__(
        self, wid: str, owner: int | None, places: dict[str, ReadPosition], options: Options, heartbeat_ms: int
    ) -> None:
        self.wid = wid
        self.owner = owner
        """The number of the API key that created the session; None without keys."""
        self.places = places
        """Positions by topic name, ordered by name; all streams of the session share them."""
        self.options = options
        self.heartbeat_ms = heartbeat_ms
        self.streams = 0
        self.idle_ns = 0
        """Since when the session has no stream, in nanoseconds of the steady clock."""

    def cursors(self) -> dict[str, int]:
        """Return the cursor of each topic."""
        return {name: place.cursor for name, place in self.places.items()}

    def rewind(self, cursors: dict[str, int]) -> None:
        """Move back to the cursors of a client, never forward. Topics outside the session are ignored."""
        for name, cursor in cursors.items():
            place = self.places.get(name)
            if place is not None:
                place.cursor = min(place.cursor, cursor)


class Sessions:
    """All watch sessions of the server."""

    def __init__(self, clock: Clock, entropy: Entropy, sessions_max: int) -> None:
        self._clock = clock
        self._entropy = entropy
        self._max = sessions_max
        self._all: dict[str, Session] = {}
        self._idle: dict[str, Session] = {}
        """Sessions without a stream; the one used longest ago is first."""

    def __len__(self) -> int:
        return len(self._all)

    def create(
        self, owner: int | None, places: dict[str, ReadPosition], options: Options, heartbeat_ms: int
    ) -> Session:
        """Create a session. Raise ThrottledError if the limit of sessions is reached."""
        self.collect()
        if 0 < self._max <= len(self._all):
            raise ThrottledError(
                f"watch session limit reached (max_watch_sessions={self._max})",
                detail={"limit": "max_watch_sessions", "max": self._max},
                retry_after_ms=1000,
            )
        wid = "wid_" + urlsafe_b64encode(self._entropy.token(_WID_BYTES)).rstrip(b"=").decode()
        session = Session(wid, owner, places, options, heartbeat_ms)
        self._all[wid] = session
        self._rest(session)
        return session

    def find(self, wid: str) -> Session | None:
        """Return the session with this id, or None if it has ended."""
        self.collect()
        return self._all.get(wid)

    def opened(self, session: Session) -> None:
        """Count a stream that opens, so that the session is not removed."""
        session.streams += 1
        self._idle.pop(session.wid, None)

    def closed(self, session: Session) -> None:
        """Count a stream that has closed. After the last one, the session can expire."""
        session.streams -= 1
        if not session.streams:
            self._rest(session)

    def collect(self) -> None:
        """Remove the sessions that were idle for longer than `SESSION_TTL_MS`."""
        limit_ns = self._clock.steady_ns() - SESSION_TTL_MS * NS_PER_MS
        while self._idle:
            wid, session = next(iter(self._idle.items()))
            if session.idle_ns >= limit_ns:
                return
            del self._idle[wid], self._all[wid]

    def _rest(self, session: Session) -> None:
        session.idle_ns = self._clock.steady_ns()
        self._idle[session.wid] = session
