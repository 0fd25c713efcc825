"""The times of copies in a dest with a TTL: without a frame, replay would only know that they were made before it.

Copies that are made again get the time of the frame that asked for them, at the latest that of the start. Where records
expire by their time, what a reader saw expire could so come back. Therefore such a dest gets a mark within a second of
its copies, without a sync of its own: they are at most so much younger afterwards.
"""

from driftq.engine.engine import Engine
from driftq.engine.frames import encode_body
from driftq.engine.topic import Topic
from driftq.errors import DriftQError
from driftq.router.frames import ROUTER_MARK, RouterMarkBody
from driftq.router.inflow import Inflow
from driftq.router.table import Table
from driftq.seam.runtime import Runtime

STAMP_MS = 1000


class Stamps:
    """Marks that are due."""

    def __init__(self, table: Table, engine: Engine, runtime: Runtime) -> None:
        self._table = table
        self._engine = engine
        self._runtime = runtime
        self._due: set[int] = set()
        self.closed = False

    def copied(self, dest: Topic, inflow: Inflow) -> None:
        """Copies were placed."""
        if dest.config.ttl_ms and dest.id not in self._due:
            self._due.add(dest.id)
            self._runtime.later(STAMP_MS, lambda: self._stamp(dest, inflow))

    def _stamp(self, dest: Topic, inflow: Inflow) -> None:
        self._due.discard(dest.id)
        if self.closed or dest.gone or not inflow.routers or inflow.frozen:
            return
        try:
            cursors = [(router.number, inflow.heading(router)) for router in inflow.routers]
            body = encode_body(RouterMarkBody(dest.next_seq - 1, cursors))
            self._engine.log(dest, ROUTER_MARK, body, self._table.feature, sync=False)
        except DriftQError:
            self.copied(dest, inflow)  # the log takes nothing now; it is tried again
        except Exception:
            self.copied(dest, inflow)
            raise
