"""Watching topics (http-v0 §12): a session on the server and its stream; both are reopened where they stopped.

The cursor of a topic is that of its last complete frame, and all items of a frame are handed out before the next frame
is read. So nothing is lost or repeated, whenever the connection breaks. If the server has lost the session, as after a
restart, the client starts a new one from these cursors; a topic that was deleted in between is reported as `TopicGone`.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.json import decode

from driftq.client.topics.pages import above_the_head
from driftq.client.transport.calls import Calls
from driftq.client.transport.event_stream import EventReader, ServerSentEvent, kept_open
from driftq.client.transport.plan import Flow, Open, Plan, Request, Response
from driftq.model.tombstone import Reason, Tombstone
from driftq.model.v0_answers import Record, Watching

_log = logging.getLogger(__name__)

T = TypeVar("T")

_SILENCE_S = 45.0
"""The stream counts as broken after this time without bytes: three heartbeats of the server, 15 s each."""


class Start(Struct, frozen=True, omit_defaults=True):
    """Where to start: after a seq, at a time in Unix milliseconds, or with `tail` at the head.

    Without any of these, the watch starts at the oldest retained record. `epoch` is the epoch that `from_seq` belongs
    to; `info()` and `diff()` return it.
    """

    from_seq: int | None = None
    from_ts: int | None = None
    tail: bool = False
    epoch: int | None = None


class CaughtUp(Struct, frozen=True):
    """All records that the topic has so far were handed out."""

    head_seq: int


class TopicGone(Struct, frozen=True):
    """The topic was deleted; the watch reads nothing more from it."""

    head_seq: int


Watched = Record | Tombstone | CaughtUp | TopicGone
Starts = Mapping[str, Start | int] | Sequence[str]


class _Records(Struct):
    topic: str
    records: list[Record]
    to_seq: int


class _TopicEvent(Struct):
    topic: str
    head_seq: int = 0


class _Failed(Struct):
    code: int | str


def watched(
    calls: Calls, topics: Starts, shape: Callable[[str, Watched], T | None], *, node: str | Sequence[str] | None
) -> Flow[T]:
    """Yield the events of these topics as `shape` converts them; an event for which it returns None is left out."""
    names = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, Start())
    starts = {name: Start(one) if isinstance(one, int) else one for name, one in names.items()}
    return kept_open(calls, _Watch(calls, starts, shape, node))


class _Watch(Generic[T]):
    """A watch session and the cursor of each topic."""

    def __init__(
        self,
        calls: Calls,
        starts: dict[str, Start],
        shape: Callable[[str, Watched], T | None],
        node: str | Sequence[str] | None,
    ) -> None:
        self._calls = calls
        self._starts = starts
        self._shape = shape
        self._node = node
        self._wid: str | None = None
        self._last_id: str | None = None
        self._resumed = False
        self._gone: list[str] = []
        self._reader = EventReader()

    def is_over(self) -> bool:
        """Whether all topics are gone and this was reported."""
        return not self._starts and not self._gone

    def opening(self) -> Plan[Open]:
        """Start a session if there is none; return the request for its stream, from the last complete frame on."""
        self._reader = EventReader()
        if self._wid is None:
            yield from self._begin()
        headers = {"accept": "text/event-stream"}
        if self._last_id is not None:
            headers["last-event-id"] = self._last_id
        return Open(Request("GET", f"/v0/watch/{self._wid}", headers=headers), _SILENCE_S)

    def _begin(self) -> Plan[None]:
        body = {"topics": self._starts, "node": self._node, "include_tags": True, "include_epoch": True}
        query = {"lenient": self._resumed}
        begun = yield from self._calls.json("POST", "/v0/watch", Watching, query=query, body=body)
        self._gone += sorted(self._starts.keys() - begun.topics.keys())
        for name, one in begun.topics.items():
            asked = self._starts[name]
            if asked.from_seq is not None and one.from_seq < asked.from_seq:
                _log.warning("topic %s: %s", name, above_the_head(asked.from_seq, one.head_seq))
            # The epoch that the caller asked for is sent again until its tombstone has arrived.
            epoch = one.epoch if asked.epoch is None else asked.epoch
            self._starts[name] = Start(one.from_seq, epoch=epoch)
        self._starts = {name: self._starts[name] for name in begun.topics}
        self._wid, self._last_id, self._resumed = begun.wid, None, True

    def reopens(self) -> bool:
        """Return True: a stream that has ended is always opened again."""
        return True

    def is_stale(self, response: Response) -> bool:
        """Whether the session has ended: with its server, or some time after its last stream was closed."""
        if response.status == 404:
            self._wid = None
        return response.status == 404

    def heard(self, chunk: bytes) -> Iterator[T]:
        """Yield the items of the complete frames."""
        while self._gone:
            yield from self._shaped(self._gone.pop(), TopicGone(0))
        for event in self._reader.feed(chunk):
            yield from self._items(event)
            self._last_id = event.id or self._last_id

    def _items(self, event: ServerSentEvent) -> Iterator[T]:
        match event.event:
            case "record":
                batch = decode(event.data, type=_Records)
                for record in batch.records:
                    yield from self._shaped(batch.topic, record)
                self._move(batch.topic, batch.to_seq)
            case "tombstone":
                topic, tombstone = decode(event.data, type=_TopicEvent).topic, decode(event.data, type=Tombstone)
                yield from self._shaped(topic, tombstone)
                if tombstone.reason is Reason.RECREATED:
                    self._starts[topic] = Start(
                        tombstone.seq - 1
                    )  # without an epoch, because no frame contains the new one
                else:
                    self._move(topic, tombstone.seq - 1)
            case "caught-up":
                frame = decode(event.data, type=_TopicEvent)
                yield from self._shaped(frame.topic, CaughtUp(frame.head_seq))
                self._move(frame.topic, frame.head_seq)
            case "topic-deleted":
                frame = decode(event.data, type=_TopicEvent)
                self._starts.pop(frame.topic, None)
                yield from self._shaped(frame.topic, TopicGone(frame.head_seq))
            case "error" if decode(event.data, type=_Failed).code == 410:
                self._wid = None

    def _move(self, topic: str, seq: int) -> None:
        self._starts[topic] = Start(seq, epoch=self._starts.get(topic, Start()).epoch)

    def _shaped(self, topic: str, item: Watched) -> Iterator[T]:
        shaped = self._shape(topic, item)
        if shaped is not None:
            yield shaped
