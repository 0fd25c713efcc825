"""The speaking half of an HTTP/2 connection: what exchanges have to send goes out in turns.

Invariants
- What has no window stays with its exchange; nobody else waits for it.
- Nothing is taken from an exchange while the peer does not read.
- What is posted in one turn of the loop leaves at its end.
"""

import asyncio
from collections.abc import Callable

from h2.connection import H2Connection
from h2.exceptions import H2Error

from driftq.http.transport.h2.h2_exchange import Exchange
from driftq.http.transport.outbox import HIGH_WATER
from driftq.system.runtime import Runtime

_ROUND_BYTES = HIGH_WATER
"""What one exchange may send before it is the next one's turn."""


class Rounds:
    """Those that have something to send, and the way out."""

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
        """In the order of their turns."""
        self._waiting: dict[int, Exchange] = {}
        """Those that wait for a window."""
        self._posted = False
        self._closed = False
        self.full = False
        """Does the peer not read?"""
        self.more = False
        """Has the window of all become larger?"""

    @property
    def unsent(self) -> int:
        """Bytes that the peer has not taken."""
        return self._transport.get_write_buffer_size()

    def begin(self) -> None:
        """Several may post now: they are sent with the next `flush`."""
        self._posted = True

    def post(self, exchange: Exchange) -> None:
        """Have what it has sent at the end of the turn."""
        self._waiting.pop(exchange.number, None)
        self._ready[exchange.number] = exchange
        if not self._posted:
            self._posted = True
            self._runtime.soon(self.flush)

    def forget(self, exchange: Exchange) -> None:
        """It has nothing to send any more."""
        self._ready.pop(exchange.number, None)
        self._waiting.pop(exchange.number, None)

    def flush(self) -> None:
        """Send what there is, in turns, until the peer's windows or its socket are full."""
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
        """Hand over what h2 has to say."""
        data = b"" if self._closed else self._h2.data_to_send()
        if data:
            self._transport.write(data)

    def close(self) -> None:
        """Nothing leaves any more."""
        self._closed = True
        self._ready.clear()
        self._waiting.clear()

    def _send_some(self, exchange: Exchange) -> None:
        """One turn of an exchange."""
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
        """Send until the window is used up or its turn is over; how many bytes that were."""
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
