"""A caller who waits until a topic is on stable storage up to some seq (http-v0 §22.6).

It ends once, by whatever comes first: the seq is reached, the topic is deleted, the time is over, the caller has hung
up. What the topic is like then is for whoever waits to look at.
"""

from driftq.http.request import Request
from driftq.seam.runtime import Pending, Timer
from driftq.server import Server


class SyncWait:
    """One caller."""

    def __init__(self, server: Server, request: Request, seq: int) -> None:
        self._server = server
        self._engine = server.engine
        self._request = request
        self._name = request.params[0]
        self._seq = seq
        self._over: Pending[None] = Pending()
        self._timer: Timer | None = None

    def park(self, wait_ms: int) -> Pending[None] | None:
        """Wait; None where there is nothing to wait for."""
        if not wait_ms or self._reached():
            return None
        self._engine.synced.add(self._name, self._look)
        self._timer = self._server.runtime.later(wait_ms, self._end)
        self._request.on_hang_up = self._end
        return self._over

    def _reached(self) -> bool:
        topic = self._engine.catalog.find(self._name)
        synced = None if topic is None else self._engine.synced_or_none(topic)
        return synced is None or synced >= self._seq

    def _look(self) -> None:
        if self._reached():
            self._end()

    def _end(self) -> None:
        if self._over.settled:
            return
        self._engine.synced.discard(self._name, self._look)
        self._request.on_hang_up = None
        if self._timer is not None:
            self._timer.cancel()
        self._over.resolve(None)
