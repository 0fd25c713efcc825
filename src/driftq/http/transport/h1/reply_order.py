"""The answering half of an HTTP/1 connection: replies in the order of their requests, and when it ends.

Invariants
- Replies leave in the order of their requests, whenever each is ready. What stands behind a stream waits for its end.
- A peer that does not read, or that asks faster than it is answered, is not read from until it has caught up, and what
  it has asked already is not taken up before: it costs its buffer and one answer.
- After the last request the connection is closed behind the last reply. A peer that was refused may still be sending:
  it is read from and ignored for a while, for closing a socket with unread bytes in it would take the reply from it.
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
"""So many requests of a peer are under way at one time; with more the peer is made to wait."""
_SENT_AT_ONCE = (Reply, bytes)
LINGER_MS = 5000
"""How long a peer has to finish sending after a refusal, and to take what it was sent last."""


class Answering:
    """Every request of a connection that is not answered yet."""

    def __init__(self, serving: Serving, transport: asyncio.Transport, owner: Peer) -> None:
        self._serving = serving
        self._handle = serving.handle
        self._answered = serving.requests.answered
        self._packing = serving.packing
        self._owner = owner
        self._transport: asyncio.Transport | None = transport
        self._slots: deque[ReplySlot] = deque()
        self._held: deque[ReplySlot] = deque()
        """Those of the slots whose requests nobody has taken up yet."""
        self._stream: ChunkSink | None = None
        self._blocked = False
        """A body is being unpacked, or a stream or a socket has its turn or will have it: what is behind it waits."""
        self._upgrade: tuple[WebSocket, bytes] | None = None
        """A handshake that was accepted, and what is to be said to it in its slot."""
        self._rest = b""
        """What came behind it."""
        self.last = False
        """No further request is taken: the connection ends when those before are answered."""
        self._refused = False
        self._busy = False
        self._full = False
        """The peer does not read what it was sent."""
        self._paused = False
        self._leaving: Timer | None = None

    @property
    def over(self) -> bool:
        """Is the peer gone, or somebody else's?"""
        return self._transport is None

    @property
    def waiting(self) -> bool:
        """Is the peer waiting for us?"""
        return bool(self._slots) or self._stream is not None

    @property
    def upgraded(self) -> bool:
        """Is what comes now for a socket?"""
        return self._upgrade is not None

    @property
    def unsent(self) -> int:
        """Bytes of replies that the peer does not take; with a stream it is its source that decides how long it may."""
        if not self._full or self._stream is not None or self._transport is None:
            return 0
        return self._transport.get_write_buffer_size()

    # Requests

    def add(self, slot: ReplySlot) -> None:
        """Take up a request, or have it wait where the peer has not taken what it asked for before."""
        self._slots.append(slot)
        if self._held or self._full or self._blocked or len(self._slots) > PIPELINE_MAX:
            self._held.append(slot)
        else:
            self._take(slot)

    @property
    def free(self) -> bool:
        """Would a request be taken up at once?"""
        return not (self.last or self._held or self._full or self._blocked) and len(self._slots) < PIPELINE_MAX

    def expect(self) -> ReplySlot:
        """Take the next place, for a reply that comes in a later turn of the loop."""
        slot = ReplySlot(None)
        self._slots.append(slot)
        return slot

    def tell(self, slot: ReplySlot, body: bytes) -> None:
        """A `200` with this JSON is the reply."""
        transport = self._transport
        if transport is None:
            return
        slots = self._slots
        text = b"%b%x\r\ncontent-length: %d\r\n\r\n%b" % (OK_JSON, next_number(), len(body), body)
        if len(slots) == 1 and not (self.last or self._busy or self._paused):
            # Nothing before it, nothing behind it, and the connection goes on: as nearly always.
            slots.clear()
            transport.write(text)
        elif self.last:
            self.settle(slot, Reply(200, body))  # whose head may say that the connection ends
        else:
            slot.answer = text
            if not self._busy:
                self.flush()

    def settle(self, slot: ReplySlot, reply: Reply) -> None:
        """This is the reply."""
        if slot.request is not None:
            self._answered(slot.request, reply, self._transport)
        if self._transport is not None:
            slot.answer = reply
            if not self._busy:
                self.flush()

    def add_last(self, request: Request) -> None:
        """Take up a request of which only the beginning was read; the rest is ignored."""
        self._refused = self.last = True
        self.add(ReplySlot(request, keep_alive=False))

    def refuse(self, request: Request, reply: Reply) -> None:
        """Answer what is not a whole request, in its slot, and take no further one."""
        if not self.last:
            self._refused = self.last = True
            self._answered(request, reply, self._transport)
            self._slots.append(ReplySlot(request, keep_alive=False, answer=reply))

    def say(self, answer: bytes) -> None:
        """Have something of the connection's own said in its slot."""
        self._slots.append(ReplySlot(None, keep_alive=False, answer=answer))

    def keep(self, data: bytes) -> None:
        """Keep what came behind a handshake until its turn has come."""
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
        """The reply is there; perhaps it is to be packed first."""
        size = reply.size if reply.more else len(reply.body)
        if size >= PACKED_MIN:
            answer = self._packing.pack(request, reply)
            if isinstance(answer, Pending):
                answer.then(lambda done: self._packed(slot, done.result()))
                return
            reply = answer
        slot.answer = reply
        # So much is not collected: the transport says when it is too much.
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
        """A WebSocket, if that is what was asked for; then no request can come any more."""
        # Loaded by the first who asks: a start should not wait for what few use.
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
        """Several requests may come now: what is ready is collected until `flush`."""
        self._busy = True

    def flush(self) -> None:
        """Send the replies whose turn has come, and take up what has waited for that."""
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
        """Take up what has waited; where that is much, others have a turn in between."""
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
                # One short reply, as nearly always.
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
        """A stream's slot, or a socket's, has come."""
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
        # Nobody knows when somebody who does not read takes the end of it: such a connection is not kept.
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

    # Life

    def pause(self) -> None:
        """The peer does not read."""
        self._full = True
        if self._stream is not None:
            self._stream.pause()
        self._keep_pace()

    def resume(self) -> None:
        """It does again."""
        self._full = False
        if self._stream is not None:
            self._stream.resume()
        self.flush()

    def end(self) -> bool:
        """The peer sends no more. Does it still wait for anything? Who reads a stream and hangs up is gone."""
        self.last = True
        self._hang_up()
        if self._stream is not None and self._transport is not None:
            self._transport.abort()
            return False
        return bool(self._slots)

    def finish(self) -> None:
        """The server is going."""
        self.last = True
        self._refused = False
        if self._stream is not None:
            self._stream.goodbye()
        self._hang_up()
        if self._leaving is not None and self._transport is not None:
            self._transport.close()
        self.flush()

    def lose(self) -> None:
        """The peer is gone."""
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
        """Nobody is to be kept waiting, and no slot for somebody who may be gone: what can be answered now is."""
        for slot in list(self._slots):
            if slot.answer is None and slot.request is not None:
                slot.request.hang_up()

    def _leave(self, transport: asyncio.Transport) -> None:
        """Close behind the last reply; a peer that does not take it, or goes on sending, is not waited for for ever."""
        self._leaving = self._serving.runtime.later(LINGER_MS, transport.abort)
        if self._refused:
            transport.write_eof()
        else:
            transport.close()

    def _keep_pace(self) -> None:
        """Read from the peer, or do not, as it keeps up."""
        wait = self._full or len(self._slots) >= PIPELINE_MAX or len(self._rest) > HIGH_WATER
        transport = self._transport
        if wait == self._paused or transport is None or transport.is_closing():
            return
        self._paused = wait
        if wait:
            transport.pause_reading()
        else:
            transport.resume_reading()
