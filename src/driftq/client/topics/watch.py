"""Watching topics (http-v0 §12): a session and its stream, opened again where they stopped.

The cursor of a topic is that of the last frame that came whole, and every frame is handed out whole before the next one
is read. So nothing is lost and nothing comes twice, whenever the connection breaks. A session that is gone with its
server is begun anew from these cursors; a topic that is gone meanwhile is told of.
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
"""Three heartbeats."""


class Start(Struct, frozen=True, omit_defaults=True):
    """Where to begin: behind a seq, at a time, or at the head; from what is retained if nothing is said.

    `epoch` is the one that `from_seq` belongs to, as `info()` and `diff()` tell it.
    """

    from_seq: int | None = None
    from_ts: int | None = None
    tail: bool = False
    epoch: int | None = None


class CaughtUp(Struct, frozen=True):
    """All that a topic had has been handed out."""

    head_seq: int


class TopicGone(Struct, frozen=True):
    """A topic was deleted; nothing more comes from it."""

    head_seq: int


Watched = Record | Tombstone | CaughtUp | TopicGone
Starts = Mapping[str, Start | int] | Sequence[str]


class _Records(Struct):
    topic: str
    records: list[Record]
    to_seq: int


class _Told(Struct):
    topic: str
    head_seq: int = 0


class _Failed(Struct):
    code: int | str


def watched(
    calls: Calls, topics: Starts, shape: Callable[[str, Watched], T | None], *, node: str | Sequence[str] | None
) -> Flow[T]:
    """What happens in these topics; `shape` makes an item of it, or None where nobody wants to know."""
    names = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, Start())
    starts = {name: Start(one) if isinstance(one, int) else one for name, one in names.items()}
    return kept_open(calls, _Watch(calls, starts, shape, node))


class _Watch(Generic[T]):
    """A session, and how far it has got."""

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
        """No topic is left, and all is said."""
        return not self._starts and not self._gone

    def opening(self) -> Plan[Open]:
        """The stream of the session, from the last frame that came."""
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
        """Whether a stream that has ended is opened again: always."""
        return True

    def is_stale(self, response: Response) -> bool:
        """Sessions end with their server, and some time after their last stream."""
        if response.status == 404:
            self._wid = None
        return response.status == 404

    def heard(self, chunk: bytes) -> Iterator[T]:
        """The items of the frames that are whole."""
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
                topic, tombstone = decode(event.data, type=_Told).topic, decode(event.data, type=Tombstone)
                yield from self._shaped(topic, tombstone)
                if tombstone.reason is Reason.RECREATED:
                    self._starts[topic] = Start(tombstone.seq - 1)  # of an epoch that no frame names
                else:
                    self._move(topic, tombstone.seq - 1)
            case "caught-up":
                told = decode(event.data, type=_Told)
                yield from self._shaped(told.topic, CaughtUp(told.head_seq))
                self._move(told.topic, told.head_seq)
            case "topic-deleted":
                told = decode(event.data, type=_Told)
                self._starts.pop(told.topic, None)
                yield from self._shaped(told.topic, TopicGone(told.head_seq))
            case "error" if decode(event.data, type=_Failed).code == 410:
                self._wid = None

    def _move(self, topic: str, seq: int) -> None:
        self._starts[topic] = Start(seq, epoch=self._starts.get(topic, Start()).epoch)

    def _shaped(self, topic: str, item: Watched) -> Iterator[T]:
        shaped = self._shape(topic, item)
        if shaped is not None:
            yield shaped
