"""Server-sent events out of the bytes they come in (http-v0 §12.3)."""

from collections.abc import Iterator
from typing import NamedTuple


class Event(NamedTuple):
    """One frame; a comment or a `retry` alone is none."""

    id: str | None
    event: str
    data: bytes


class EventReader:
    """Takes bytes as they come."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The frames that are whole."""
        *frames, self._rest = (self._rest + chunk).split(b"\n\n")
        for frame in frames:
            fields: dict[bytes, bytes] = {}
            for line in frame.split(b"\n"):
                name, _, value = line.partition(b": ")
                fields[name] = value
            if b"data" in fields:
                number = fields.get(b"id")
                yield Event(
                    None if number is None else number.decode(),
                    fields.get(b"event", b"message").decode(),
                    fields[b"data"],
                )
