"""The sending half of an HTTP/1 connection: sends replies in the order of their requests, and ends the connection.

Invariants
- Replies leave in the order of their requests, no matter which is ready first. Replies after a stream wait for its end.
- While a peer does not read, or has too many unanswered requests, the server does not read from it and does not start
  the requests it has already sent. So such a peer costs only its buffer and one answer.
- After the last request the connection is closed once the last reply is sent. A refused peer may still be sending: its
  bytes are read and ignored for a while, because closing a socket with unread bytes could discard the reply.
"""

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from driftq.errors import DriftQError
from driftq.http.answer import ReplySlot, StreamAnswer, Upgrade
from driftq.http.gzip_encoding import PACKED_MIN
from driftq.http.reply import OK_JSON, Reply, encode_head
from driftq.http.request import Request
from driftq.http.request_id import next_number
from driftq.http.transport.chunk_stream import ChunkSink, stream_head, tell_closed
from driftq.http.transport.connection_context import Peer, Serving
from driftq.http.transport.outbox import HIGH_WATER, JOIN_MAX, write_parts
from driftq.http.transport.request_flow import outcome
from driftq.http.v0.errors import error_reply
from driftq.system.runtime import Pending, Timer

if TYPE_CHECKING:
    from driftq.http.transport.websocket import WebSocket

# long: one state machine, whose parts would share every field
PIPELINE_MAX = 64
"""The most requests of one connection that are processed at the same time; further requests wait."""
_SENT_AT_ONCE = (Reply, bytes)
LINGER_MS = 5000
"""How long a peer has after a refusal to finish sending, and to read the last bytes sent to it, in ms."""


class Answering:
    """The unanswered requests of one connection."""

    def __init__(self, serving: Serving, transport: asyncio.Transport, owner: Peer) -> None:
        self._serving = serving
        self._handle = serving.handle
        self._answered = serving.requests.answered
        self._packing = serving.packing
        self._owner = owner
        self._transport: asyncio.Transport | None = transport
        self._slots: deque[ReplySlot] = deque()
        self._held: deque[ReplySlot] = deque()
        """The slots whose requests have not been started."""
        self._stream: ChunkSink | None = None
        self._blocked = False
        """Whether a body is being decompressed, or a stream or WebSocket is open or queued; later requests wait."""
        self._upgrade: tuple[WebSocket, bytes] | None = None
        """An accepted handshake, and the bytes to send in its slot."""
        self._rest = b""
        """Bytes that came after the handshake."""
        self.last = False
        """Whether no further request is accepted: the connection ends when the earlier ones are answered."""
        self._refused = False
        self._busy = False
        self._full = False
        """Whether the peer does not read what was sent to it."""
        self._paused = False
        self._leaving: Timer | None = None

    @property
    def over(self) -> bool:
        """Whether the peer is gone, or its connection was passed on to a WebSocket."""
        return self._transport is None

    @property
    def waiting(self) -> bool:
        """Whether the peer waits for a reply or reads a stream."""
        return bool(self._slots) or self._stream is not None

    @property
    def upgraded(self) -> bool:
        """Whether received bytes belong to a WebSocket."""
        return self._upgrade is not None

    @property
    def unsent(self) -> int:
        """Return the unread reply bytes of a stuck peer; 0 during a stream, because its source has its own limit."""
        if not self._full or self._stream is not None or self._transport is None:
            return 0
        return self._transport.get_write_buffer_size()

    # Requests

    def add(self, slot: ReplySlot) -> None:
        """Start a request, or queue it while the peer has not read its earlier replies or has too many requests."""
        self._slots.append(slot)
        if self._held or self._full or self._blocked or len(self._slots) > PIPELINE_MAX:
            self._held.append(slot)
        else:
            self._take(slot)

    @property
    def free(self) -> bool:
        """Whether a new request would be started at once."""
        return not (self.last or self._held or self._full or self._blocked) and len(self._slots) < PIPELINE_MAX

    def expect(self) -> ReplySlot:
        """Reserve the next place for a reply that comes in a later loop turn."""
        slot = ReplySlot(None)
        self._slots.append(slot)
        return slot

    def tell(self, slot: ReplySlot, body: bytes) -> None:
        """Answer a slot of the short path with `200` and this JSON body."""
        transport = self._transport
        if transport is None:
            return
        slots = self._slots
        text = b"%b%x\r\ncontent-length: %d\r\n\r\n%b" % (OK_JSON, next_number(), len(body), body)
        if len(slots) == 1 and not (self.last or self._busy or self._paused):
            # The usual case: no other slot exists, and the connection stays open.
            slots.clear()
            transport.write(text)
        elif self.last:
            self.settle(slot, Reply(200, body))  # its head may have to announce the end of the connection
        else:
            slot.answer = text
            if not self._busy:
                self.flush()

    def settle(self, slot: ReplySlot, reply: Reply) -> None:
        """Answer a slot with this reply; if the slot has a request, log it."""
        if slot.request is not None:
            self._answered(slot.request, reply, self._transport)
        if self._transport is not None:
            slot.answer = reply
            if not self._busy:
                self.flush()

    def add_last(self, request: Request) -> None:
        """Start a request of which only the beginning was read; the rest is ignored."""
        self._refused = self.last = True
        self.add(ReplySlot(request, keep_alive=False))

    def refuse(self, request: Request, reply: Reply) -> None:
        """Answer an incomplete or invalid request in its slot, and accept no further request."""
        if not self.last:
            self._refused = self.last = True
            self._answered(request, reply, self._transport)
            self._slots.append(ReplySlot(request, keep_alive=False, answer=reply))

    def say(self, answer: bytes) -> None:
        """Queue bytes of the connection itself, such as `100 Continue`, in their slot."""
        self._slots.append(ReplySlot(None, keep_alive=False, answer=answer))

    def keep(self, data: bytes) -> None:
        """Keep bytes that came after a handshake until the WebSocket is opened."""
        self._rest += data
        self._keep_pace()

    def _take(self, slot: ReplySlot) -> None:
        request = slot.request
        assert request is not None
        if slot.coded and (unpacking := self._packing.unpack(request, self._serving.terms.body_bytes_max)) is not None:
            self._blocked = True
            unpacking.then(lambda _: self._unpacked(slot))
            return
        answer = self._handle(request)
        if isinstance(answer, Pending):
            answer.then(partial(self._settle, slot, request))
            return
        self._answered(request, answer, self._transport)
        if isinstance(answer, Reply):
            self._reply(slot, request, answer)
        else:
            self._give(slot, answer)

    def _unpacked(self, slot: ReplySlot) -> None:
        self._blocked = slot.coded = False
        if self._transport is not None:
            self._take(slot)
            self.flush()

    def _settle(self, slot: ReplySlot, request: Request, done: Pending[Reply]) -> None:
        reply = done.result() if done.error is None else outcome(done)
        self._answered(request, reply, self._transport)
        if self._transport is not None:
            self._reply(slot, request, reply)
            if not self._busy:
                self.flush()

    def _reply(self, slot: ReplySlot, request: Request, reply: Reply) -> None:
        """Store the reply in its slot, compressed first if needed."""
        size = reply.size if reply.more else len(reply.body)
        if size >= PACKED_MIN:
            answer = self._packing.pack(request, reply)
            if isinstance(answer, Pending):
                answer.then(lambda done: self._packed(slot, done.result()))
                return
            reply = answer
        slot.answer = reply
        # A large reply is written at once instead of being collected, so that the transport can report a full buffer.
        if size > JOIN_MAX:
            self._send_ready()

    def _packed(self, slot: ReplySlot, reply: Reply) -> None:
        slot.answer = reply
        self.flush()

    def _give(self, slot: ReplySlot, answer: StreamAnswer | Upgrade) -> None:
        slot.answer = answer
        if isinstance(answer, Upgrade):
            self._accept(slot, answer)
        elif slot.with_body:
            self._blocked = True
        else:
            slot.answer = stream_head(
                answer, request_id=slot.request_id, keep_alive=slot.keep_alive, chunked=not slot.old
            )
            tell_closed(answer.source.closed)

    def _accept(self, slot: ReplySlot, upgrade: Upgrade) -> None:
        """Prepare a WebSocket if the request is a handshake, else refuse it. No request can follow a handshake."""
        # Imported on first use: few clients need WebSockets, and a start should not wait for the import.
        from driftq.http.transport.websocket import WebSocket, accept_handshake

        assert slot.request is not None
        assert self._transport is not None
        try:
            head = accept_handshake(slot.request)
        except DriftQError as error:
            slot.answer = error_reply(error)
            tell_closed(upgrade.source.closed)
        else:
            self._upgrade = WebSocket(upgrade.source, self._transport, self._serving), head
            self._blocked = True

    # Answers

    def begin(self) -> None:
        """Collect replies until `flush`, because several requests may follow."""
        self._busy = True

    def flush(self) -> None:
        """Send the replies that are next in order, and start requests that waited."""
        slots = self._slots
        if slots and slots[0].answer is not None:
            self._send_ready()
        if self._held:
            self._take_held()
        self._busy = False
        transport = self._transport
        if transport is None or self._stream is not None:
            return
        if slots or not self.last:
            if self._paused or len(slots) >= PIPELINE_MAX:
                self._keep_pace()
        elif self._leaving is None:
            self._leave(transport)

    def _take_held(self) -> None:
        """Start waiting requests; after `PIPELINE_MAX` of them, let other connections run first."""
        self._busy = True
        for _ in range(PIPELINE_MAX):
            if not self._may_take():
                break
            self._take(self._held.popleft())
        self._send_ready()
        if self._may_take():
            self._serving.runtime.soon(self.flush)

    def _may_take(self) -> bool:
        if not self._held or self._full or self._blocked or self._transport is None:
            return False
        return len(self._slots) - len(self._held) < PIPELINE_MAX

    def _send_ready(self) -> None:
        transport = self._transport
        slots = self._slots
        if transport is None or self._stream is not None or not slots or slots[0].answer is None:
            return
        parts: list[bytes] = []
        size = 0
        while slots and isinstance(answer := slots[0].answer, _SENT_AT_ONCE):
            slot = slots.popleft()
            if isinstance(answer, bytes):
                parts.append(answer)
                size += len(answer)
                continue
            keep_alive = slot.keep_alive and not (self.last and not slots)
            length = answer.size if answer.more else len(answer.body)
            head = encode_head(answer, length, request_id=slot.request_id, keep_alive=keep_alive, old=slot.old)
            if not slots and not parts and not answer.more and length <= JOIN_MAX and slot.with_body:
                # The usual case: one short reply.
                transport.write(head + answer.body)
                return
            parts.append(head)
            if slot.with_body:
                parts.append(answer.body)
                parts += answer.more
                size += length
        if parts:
            write_parts(transport, parts, size)
        if slots and slots[0].answer is not None:
            self._open(transport, slots.popleft())

    def _open(self, transport: asyncio.Transport, slot: ReplySlot) -> None:
        """Open the stream or the WebSocket whose slot is next."""
        if self._upgrade is not None:
            self._hand_over(transport, *self._upgrade)
            return
        stream = slot.answer
        assert isinstance(stream, StreamAnswer)
        self.last |= slot.old
        keep_alive = slot.keep_alive and not slot.old and not (self.last and not self._slots)
        head = stream_head(stream, request_id=slot.request_id, keep_alive=keep_alive, chunked=not slot.old)
        self._stream = ChunkSink(
            stream.source, transport, self._serving.runtime, chunked=not slot.old, on_end=self._stream_ended
        )
        self._stream.open(head)

    def _stream_ended(self) -> None:
        self._stream = None
        self._blocked = False
        # A peer that does not read may never read the end of the stream: its connection is not kept.
        self.last |= self._full
        self.flush()

    def _hand_over(self, transport: asyncio.Transport, socket: "WebSocket", head: bytes) -> None:
        transport.set_protocol(socket)
        self._serving.peers.replace(self._owner, socket)
        self._transport = None
        if self._paused:
            transport.resume_reading()
        if self._full:
            socket.pause_writing()
        socket.open(head, self._rest)

    # Pause, resume and end

    def pause(self) -> None:
        """Stop reading and starting requests, because the peer does not read."""
        self._full = True
        if self._stream is not None:
            self._stream.pause()
        self._keep_pace()

    def resume(self) -> None:
        """Continue sending and starting requests, because the peer reads again."""
        self._full = False
        if self._stream is not None:
            self._stream.resume()
        self.flush()

    def end(self) -> bool:
        """Note that the peer sends no more. Returns whether replies are due; a peer that reads a stream is dropped."""
        self.last = True
        self._hang_up()
        if self._stream is not None and self._transport is not None:
            self._transport.abort()
            return False
        return bool(self._slots)

    def finish(self) -> None:
        """Accept no further request and close after the last reply, because the server shuts down."""
        self.last = True
        self._refused = False
        if self._stream is not None:
            self._stream.goodbye()
        self._hang_up()
        if self._leaving is not None and self._transport is not None:
            self._transport.close()
        self.flush()

    def lose(self) -> None:
        """Release everything, because the peer is gone."""
        self.last = True
        self._transport = None
        for slot in self._slots:
            if isinstance(slot.answer, StreamAnswer | Upgrade):
                tell_closed(slot.answer.source.closed)
        self._hang_up()
        self._slots.clear()
        self._held.clear()
        if self._stream is not None:
            self._stream.lose()
        if self._leaving is not None:
            self._leaving.cancel()

    def _hang_up(self) -> None:
        """Have waiting requests answered now where possible, because their caller may be gone or should not wait."""
        for slot in list(self._slots):
            if slot.answer is None and slot.request is not None:
                slot.request.hang_up()

    def _leave(self, transport: asyncio.Transport) -> None:
        """Close after the last reply; abort after `LINGER_MS` if the peer does not read it or keeps sending."""
        self._leaving = self._serving.runtime.later(LINGER_MS, transport.abort)
        if self._refused:
            transport.write_eof()
        else:
            transport.close()

    def _keep_pace(self) -> None:
        """Start or stop reading from the peer, depending on whether it keeps up."""
        wait = self._full or len(self._slots) >= PIPELINE_MAX or len(self._rest) > HIGH_WATER
        transport = self._transport
        if wait == self._paused or transport is None or transport.is_closing():
            return
        self._paused = wait
        if wait:
            transport.pause_reading()
        else:
            transport.resume_reading()
