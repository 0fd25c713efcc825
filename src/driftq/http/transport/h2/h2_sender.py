"""The sending half of an HTTP/2 connection: exchanges send their waiting bytes in turns.

Invariants
- Bytes without a window stay with their exchange and delay no other exchange.
- Nothing is taken from an exchange while the peer does not read.
- Bytes posted in one loop turn leave at its end.
"""

import asyncio
from collections.abc import Callable

from h2.connection import H2Connection
from h2.exceptions import H2Error

from driftq.http.transport.h2.h2_exchange import Exchange
from driftq.http.transport.outbox import HIGH_WATER
from driftq.system.runtime import Runtime

_ROUND_BYTES = HIGH_WATER
"""How many bytes one exchange may send before the next exchange has its turn."""


class Rounds:
    """The exchanges that have something to send, in the order of their turns."""

    def __init__(
        self,
        runtime: Runtime,
        transport: asyncio.Transport,
        protocol: H2Connection,
        *,
        on_sent: Callable[[Exchange], None],
        on_failed: Callable[[Exchange], None],
    ) -> None:
        self._runtime = runtime
        self._transport = transport
        self._h2 = protocol
        self._on_sent = on_sent
        self._on_failed = on_failed
        self._ready: dict[int, Exchange] = {}
        """Exchanges that can send, in the order of their turns."""
        self._waiting: dict[int, Exchange] = {}
        """Exchanges that wait for a window."""
        self._posted = False
        self._closed = False
        self.full = False
        """Whether the peer does not read."""
        self.more = False
        """Whether the connection's window has grown since the last flush."""

    @property
    def unsent(self) -> int:
        """Return the number of bytes that the peer has not read yet."""
        return self._transport.get_write_buffer_size()

    def begin(self) -> None:
        """Collect posts until the next `flush`, because several exchanges may post."""
        self._posted = True

    def post(self, exchange: Exchange) -> None:
        """Send the waiting bytes of an exchange at the end of this loop turn."""
        self._waiting.pop(exchange.number, None)
        self._ready[exchange.number] = exchange
        if not self._posted:
            self._posted = True
            self._runtime.soon(self.flush)

    def forget(self, exchange: Exchange) -> None:
        """Remove an exchange that has nothing more to send."""
        self._ready.pop(exchange.number, None)
        self._waiting.pop(exchange.number, None)

    def flush(self) -> None:
        """Send in turns until nothing is left, the windows are used up, or the peer does not read."""
        self._posted = False
        if self._closed:
            return
        if self.more:
            self.more = False
            self._ready.update(self._waiting)
            self._waiting.clear()
        self.write()
        while self._ready and not self.full:
            number, exchange = next(iter(self._ready.items()))
            del self._ready[number]
            if not exchange.over:
                self._send_some(exchange)
                self.write()

    def write(self) -> None:
        """Write the frames that h2 has prepared."""
        data = b"" if self._closed else self._h2.data_to_send()
        if data:
            self._transport.write(data)

    def close(self) -> None:
        """Stop sending: nothing leaves after this call."""
        self._closed = True
        self._ready.clear()
        self._waiting.clear()

    def _send_some(self, exchange: Exchange) -> None:
        """Give one exchange its turn; end its stream if it is complete."""
        try:
            sent = self._send_window(exchange)
            if exchange.empty and exchange.ending:
                if not sent:
                    self._h2.end_stream(exchange.number)
                self._on_sent(exchange)
        except H2Error:
            self._on_failed(exchange)
        exchange.tell_room()

    def _send_window(self, exchange: Exchange) -> int:
        """Send until the window or the turn is used up. Returns the number of bytes sent."""
        number, sent = exchange.number, 0
        while not exchange.empty:
            most = min(self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size)
            if most <= 0:
                self._waiting[number] = exchange
                break
            if sent >= _ROUND_BYTES:
                self._ready[number] = exchange
                break
            part = exchange.take(most)
            sent += len(part)
            self._h2.send_data(number, part, end_stream=exchange.ending and exchange.empty)
        return sent
