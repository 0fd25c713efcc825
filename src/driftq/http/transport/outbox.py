"""What leaves a connection that writes on its own accord: a stream, or a WebSocket.

Invariants
- What is put in one turn of the loop leaves in one write, at the end of that turn; what is pushed leaves at once, or
  behind what was put before it.
- There is room while the transport has less than `HIGH_WATER` bytes that the peer has not taken. `on_room` is called
  once for every time there was none and there is again; never from inside `put` or `push`.
"""

import asyncio
from collections.abc import Callable, Sequence

from driftq.system.runtime import Runtime

HIGH_WATER = 64 << 10
LOW_WATER = 16 << 10
JOIN_MAX = 16 << 10
"""Up to so many bytes are copied into one piece; more leave as the pieces they are."""


def write_parts(transport: asyncio.Transport, parts: Sequence[bytes], size: int) -> None:
    """Hand pieces to the transport, in one call."""
    if len(parts) == 1:
        transport.write(parts[0])
    elif size <= JOIN_MAX:
        transport.write(b"".join(parts))
    else:
        transport.writelines(parts)


class Outbox:
    """The way out of one connection."""

    def __init__(self, transport: asyncio.Transport, runtime: Runtime, on_room: Callable[[], None]) -> None:
        self._transport = transport
        self._runtime = runtime
        self._on_room = on_room
        self._parts: list[bytes] = []
        self._size = 0
        self._tight = False
        """There was no room, and nobody was told that there is again."""
        self._full = False
        """The transport has more than the peer takes."""
        self._gone = False

    @property
    def room(self) -> bool:
        """Is there?"""
        return not self._full and self._size < HIGH_WATER and not self._gone

    @property
    def unsent(self) -> int:
        """Bytes that the peer has not taken."""
        return 0 if self._gone else self._size + self._transport.get_write_buffer_size()

    def put(self, *parts: bytes) -> None:
        """Take bytes for the peer; once it is gone they go nowhere."""
        if self._gone:
            return
        if not self._parts:
            self._runtime.soon(self.flush)
        self._parts += parts
        self._size += sum(map(len, parts))
        if self._size >= HIGH_WATER:
            self._tight = True

    def push(self, *parts: bytes) -> None:
        """Take bytes that nothing is to be waited for with."""
        if self._parts:
            self.put(*parts)
        elif not self._gone:
            write_parts(self._transport, parts, sum(map(len, parts)))

    def flush(self) -> None:
        """Hand over what was put."""
        if self._gone or not self._parts:
            return
        parts, size = self._parts, self._size
        self._parts, self._size = [], 0
        write_parts(self._transport, parts, size)
        self._tell()

    def pause(self) -> None:
        """The peer does not read."""
        self._full = self._tight = True

    def resume(self) -> None:
        """It does again."""
        self._full = False
        self._tell()

    def drop(self) -> None:
        """The peer is gone, or the outbox is done with."""
        self._gone = True
        self._parts = []

    def _tell(self) -> None:
        if self._tight and self.room:
            self._tight = False
            self._on_room()
