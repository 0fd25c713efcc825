"""The outgoing bytes of a stream or a WebSocket.

Invariants
- All `put` bytes of one loop turn leave in one write at the end of that turn. `push` bytes leave at once, or after the
  bytes that were put before them.
- There is room while the transport buffers less than `HIGH_WATER` bytes that the peer has not read. `on_room` is called
  once each time that room returns, never from inside `put` or `push`.
"""

import asyncio
from collections.abc import Callable, Sequence

from driftq.system.runtime import Runtime

HIGH_WATER = 64 << 10
LOW_WATER = 16 << 10
JOIN_MAX = 16 << 10
"""Up to this many bytes are copied into one piece; more are written as separate pieces."""


def write_parts(transport: asyncio.Transport, parts: Sequence[bytes], size: int) -> None:
    """Write pieces to the transport in one call."""
    if len(parts) == 1:
        transport.write(parts[0])
    elif size <= JOIN_MAX:
        transport.write(b"".join(parts))
    else:
        transport.writelines(parts)


class Outbox:
    """The buffer between a stream or WebSocket and its transport."""

    def __init__(self, transport: asyncio.Transport, runtime: Runtime, on_room: Callable[[], None]) -> None:
        self._transport = transport
        self._runtime = runtime
        self._on_room = on_room
        self._parts: list[bytes] = []
        self._size = 0
        self._tight = False
        """Whether there was no room since `on_room` was last called."""
        self._full = False
        """Whether the transport's buffer is full because the peer does not read."""
        self._gone = False

    @property
    def room(self) -> bool:
        """Whether the outbox accepts more bytes."""
        return not self._full and self._size < HIGH_WATER and not self._gone

    @property
    def unsent(self) -> int:
        """Return the number of bytes that the peer has not read yet."""
        return 0 if self._gone else self._size + self._transport.get_write_buffer_size()

    def put(self, *parts: bytes) -> None:
        """Queue bytes for the end of this loop turn; does nothing once the peer is gone."""
        if self._gone:
            return
        if not self._parts:
            self._runtime.soon(self.flush)
        self._parts += parts
        self._size += sum(map(len, parts))
        if self._size >= HIGH_WATER:
            self._tight = True

    def push(self, *parts: bytes) -> None:
        """Write bytes now, or after the queued bytes if there are any."""
        if self._parts:
            self.put(*parts)
        elif not self._gone:
            write_parts(self._transport, parts, sum(map(len, parts)))

    def flush(self) -> None:
        """Write the queued bytes to the transport."""
        if self._gone or not self._parts:
            return
        parts, size = self._parts, self._size
        self._parts, self._size = [], 0
        write_parts(self._transport, parts, size)
        self._tell()

    def pause(self) -> None:
        """Report no room until `resume`, because the peer does not read."""
        self._full = self._tight = True

    def resume(self) -> None:
        """Report room again, because the peer reads again."""
        self._full = False
        self._tell()

    def drop(self) -> None:
        """Discard queued bytes and ignore further ones: the peer is gone, or the outbox is no longer used."""
        self._gone = True
        self._parts = []

    def _tell(self) -> None:
        if self._tight and self.room:
            self._tight = False
            self._on_room()
