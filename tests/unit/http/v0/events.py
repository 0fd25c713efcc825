"""Event streams of a `ServerRig`, read back."""

from typing import Any, NamedTuple

from msgspec import json

from driftq.http.answer import StreamAnswer
from driftq.http.v0.streams.watch_events import decode_id
from driftq.testing.server_rig import KeptSink, ServerRig


class Event(NamedTuple):
    """One frame: a comment has only data."""

    event: str
    data: Any
    id: dict[str, int] | None = None


def events_of(data: bytes) -> list[Event]:
    """The frames in the bytes of a stream; every line must be as the contract has it."""
    assert data.endswith(b"\n\n") or not data
    return [_event(frame) for frame in data.split(b"\n\n")[:-1]]


def _event(frame: bytes) -> Event:
    fields: dict[str, bytes] = {}
    for line in frame.split(b"\n"):
        name, separator, value = line.partition(b": ")
        assert separator, line
        assert name.decode() not in fields, frame
        fields[name.decode()] = value
    if set(fields) <= {"", "retry"}:
        return Event("retry" if "retry" in fields else "comment", b"".join(fields.values()).decode())
    cursors = decode_id(fields["id"]) if "id" in fields else None
    return Event(fields["event"].decode(), json.decode(fields["data"]), cursors)


class Watcher:
    """A session of a rig, and its stream."""

    def __init__(self, rig: ServerRig, topics: Any, *, query: str = "", **body: Any) -> None:
        if not isinstance(topics, dict):
            topics = {topic: {} for topic in topics}
        self.rig = rig
        self.session = rig.ok("POST", f"/v0/watch{query}", {"topics": topics, **body})
        self.open()

    def open(self, query: str = "", **options: Any) -> None:
        """A stream, or another one."""
        self.stream: StreamAnswer
        self.sink: KeptSink
        self.stream, self.sink = self.rig.stream(self.session["stream_url"] + query, **options)

    def events(self) -> list[Event]:
        """What came since the last call."""
        self.rig.run()
        return events_of(self.sink.taken())

    def short(self) -> list[Any]:
        """The same in few words: the values of records, the head of what is caught up."""
        return [_short(event) for event in self.events()]

    def close(self) -> None:
        """The client goes."""
        self.stream.source.closed()
        self.rig.run()


def _short(event: Event) -> Any:
    if event.event == "record":
        return [record.get("data") for record in event.data["records"]]
    if event.event == "caught-up":
        return event.data["head_seq"]
    return event.event
