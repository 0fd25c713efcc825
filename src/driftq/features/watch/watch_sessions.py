"""Watch sessions: what a stream reads and where it stands, kept between its connections (http-v0 §12.1, §12.5).

A session is collected when nobody has used it for its time; never while a stream of it is open. It lives in memory and
ends with the process.
"""

from base64 import urlsafe_b64encode

from driftq.errors import ThrottledError
from driftq.features.watch.position import Options, ReadPosition
from driftq.system.clock import Clock
from driftq.system.entropy import Entropy

SESSION_TTL_MS = 300_000
_WID_BYTES = 16
_NS_PER_MS = 1_000_000


class Session:
    """One subscription."""

    def __init__(
        self, wid: str, owner: int | None, places: dict[str, ReadPosition], options: Options, heartbeat_ms: int
    ) -> None:
        self.wid = wid
        self.owner = owner
        """The key that made it, by number; nobody's without keys."""
        self.places = places
        """By name, in the order of names; shared by all its streams."""
        self.options = options
        self.heartbeat_ms = heartbeat_ms
        self.streams = 0
        self.idle_ns = 0
        """Since when it has no stream."""

    def cursors(self) -> dict[str, int]:
        """Where it stands, topic by topic."""
        return {name: place.cursor for name, place in self.places.items()}

    def rewind(self, cursors: dict[str, int]) -> None:
        """Go back to where a client was, never forward; topics that are not its own are passed over."""
        for name, cursor in cursors.items():
            place = self.places.get(name)
            if place is not None:
                place.cursor = min(place.cursor, cursor)


class Sessions:
    """All of them."""

    def __init__(self, clock: Clock, entropy: Entropy, sessions_max: int) -> None:
        self._clock = clock
        self._entropy = entropy
        self._max = sessions_max
        self._all: dict[str, Session] = {}
        self._idle: dict[str, Session] = {}
        """Those without a stream, used longest ago first."""

    def __len__(self) -> int:
        return len(self._all)

    def create(
        self, owner: int | None, places: dict[str, ReadPosition], options: Options, heartbeat_ms: int
    ) -> Session:
        """A new one, or the refusal that there are as many as there may be."""
        self.collect()
        if 0 < self._max <= len(self._all):
            raise ThrottledError(
                "there are as many watch sessions as there may be",
                detail={"limit": "max_watch_sessions", "max": self._max},
                retry_after_ms=1000,
            )
        wid = "wid_" + urlsafe_b64encode(self._entropy.token(_WID_BYTES)).rstrip(b"=").decode()
        session = Session(wid, owner, places, options, heartbeat_ms)
        self._all[wid] = session
        self._rest(session)
        return session

    def find(self, wid: str) -> Session | None:
        """The session of an id, if it is there still."""
        self.collect()
        return self._all.get(wid)

    def opened(self, session: Session) -> None:
        """A stream of it begins."""
        session.streams += 1
        self._idle.pop(session.wid, None)

    def closed(self, session: Session) -> None:
        """And ends."""
        session.streams -= 1
        if not session.streams:
            self._rest(session)

    def collect(self) -> None:
        """Let go of those whose time is over."""
        limit_ns = self._clock.steady_ns() - SESSION_TTL_MS * _NS_PER_MS
        while self._idle:
            wid, session = next(iter(self._idle.items()))
            if session.idle_ns >= limit_ns:
                return
            del self._idle[wid], self._all[wid]

    def _rest(self, session: Session) -> None:
        session.idle_ns = self._clock.steady_ns()
        self._idle[session.wid] = session
