"""Jobs that the server pushes (http-v0 §14.9), up to a limit, on a stream that the client reopens when it breaks.

A worker holds the jobs of a stream while the stream is open and their leases last. When the stream breaks, the server
hands out the jobs that were not acked again at once.
"""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.json import decode

from driftq.client.transport.calls import Query, query_of
from driftq.client.transport.event_stream import EventReader, Rejoining
from driftq.client.transport.plan import Open, Plan, Request
from driftq.model.v0_answers import Job

_SILENCE_S = 45.0
"""The stream counts as broken after this time without bytes: three heartbeats of the server, 15 s each."""


class _Failed(Struct):
    code: int | str


class Pushed(Rejoining):
    """The stream of jobs that a queue pushes to one worker."""

    def __init__(self, path: str, query: Query) -> None:
        headers = {"accept": "text/event-stream"}
        super().__init__(Open(Request("GET", f"{path}/work", query_of(query), headers), _SILENCE_S))
        self._reader = EventReader()
        self._over = False

    def is_over(self) -> bool:
        """Whether the queue was deleted, or the topic is no longer a queue."""
        return self._over

    def opening(self) -> Plan[Open]:
        """Return the same request each time; drop the incomplete frame of the last stream."""
        self._reader = EventReader()
        return super().opening()

    def heard(self, chunk: bytes) -> Iterator[Job]:
        """Yield the jobs of the complete frames."""
        for event in self._reader.feed(chunk):
            if event.event == "job":
                yield decode(event.data, type=Job)
            elif event.event == "error" and decode(event.data, type=_Failed).code == 409:
                self._over = True
