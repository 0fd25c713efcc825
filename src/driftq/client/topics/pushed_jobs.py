"""Jobs that are pushed (http-v0 §14.9): as many as there is room for, on a stream that is opened again when it breaks.

The jobs of a stream are its worker's as long as the stream is open and their leases last: when it breaks, what was not
acked is handed out again at once.
"""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.json import decode

from driftq.client.transport.calls import Query, query_of
from driftq.client.transport.event_stream import EventReader, Rejoining
from driftq.client.transport.plan import Open, Plan, Request
from driftq.model.v0_answers import Job

_SILENCE_S = 45.0
"""Three heartbeats."""


class _Failed(Struct):
    code: int | str


class Pushed(Rejoining):
    """The jobs of a queue, for one worker."""

    def __init__(self, path: str, query: Query) -> None:
        headers = {"accept": "text/event-stream"}
        super().__init__(Open(Request("GET", f"{path}/work", query_of(query), headers), _SILENCE_S))
        self._reader = EventReader()
        self._over = False

    def is_over(self) -> bool:
        """The queue is gone."""
        return self._over

    def opening(self) -> Plan[Open]:
        """As it was; half a frame is forgotten."""
        self._reader = EventReader()
        return super().opening()

    def heard(self, chunk: bytes) -> Iterator[Job]:
        """The jobs of the frames that are whole."""
        for event in self._reader.feed(chunk):
            if event.event == "job":
                yield decode(event.data, type=Job)
            elif event.event == "error" and decode(event.data, type=_Failed).code == 409:
                self._over = True
