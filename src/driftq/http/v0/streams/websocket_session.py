"""The WebSocket of `/v0`: runs commands in order, answers them in order, and sends the records of subscriptions.

Invariants
- Commands run in the order in which they arrived, each after the previous one was answered. Publishes are an exception:
  consecutive ones run at the same time, because each topic orders its own writes. Their answers keep the order, too.
- Once `OUT_MAX` messages wait for a peer that does not read, no records are read for it and no command starts. When its
  unprocessed commands reach a limit too, the server stops reading from it. This never delays another peer.
- A subscription lives at most as long as its WebSocket.
"""

import logging
from collections import deque
from functools import partial

from msgspec.json import encode

from driftq.engine.load.admission import AdmissionSlot
from driftq.errors import DriftQError, InternalError, SegmentUnavailableError
from driftq.features.watch.feed import Feed
from driftq.features.watch.rendered_pages import RenderedPage
from driftq.http.access import Access
from driftq.http.answer import Answer, SocketSink, Upgrade
from driftq.http.metrics.request_log import EACH_MAX
from driftq.http.request import Request
from driftq.http.request_id import id_of
from driftq.http.routes import Route
from driftq.http.v0.streams.websocket_commands import (
    NO_ID,
    PUBLISH,
    Command,
    NoCommandError,
    Refused,
    SocketCommands,
    error_message,
    read_command,
)
from driftq.model.tombstone import Tombstone
from driftq.server import Server
from driftq.system.log_facts import Fact
from driftq.system.log_repeats import Repeats
from driftq.system.runtime import Pending

OUT_MAX = 4
_UNDER_WAY_MAX = 64
_IN_MAX = 16
_IN_BYTES_MAX = 1 << 20
_GOING_AWAY = 1001
_MISTAKE = 1011
_OP_CHARS_MAX = 20

_log = logging.getLogger("driftq.http")


class Sockets:
    """Accepts WebSockets: the handler of `/v0/ws`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._repeats = Repeats(server.runtime, _log)
        server.on_close.append(self._repeats.flush)

    def routes(self) -> list[Route]:
        """Return the route of the WebSocket."""
        return [Route("GET", "/v0/ws", self.open, upgrade=True)]

    def open(self, request: Request) -> Answer:
        """Accept a WebSocket and count it as a stream of the key."""
        slot = self._server.admission.take_stream(request.access.key_id)
        refused = partial(self._refused, id_of(request).decode("ascii"))
        return Upgrade(Socket(self._server, request.access, slot, refused))

    def _refused(self, request_id: str, command: Command, error: DriftQError | NoCommandError) -> None:
        """Log a refused command, grouped by reason like refused requests, with the request id of the handshake."""
        named: dict[str, Fact] = {"reason": error.code, "op": command.op[:_OP_CHARS_MAX], "request_id": request_id}
        if isinstance(error, InternalError):
            named["error"] = error.message
            self._repeats.note(error.code, logging.ERROR, "command failed", named, most=EACH_MAX)
        else:
            self._repeats.note(error.code, logging.INFO, "commands refused", named)


class Socket:
    """One WebSocket: the source of its messages, and the outlet of its feed."""

    def __init__(self, server: Server, access: Access, slot: AdmissionSlot, refused: Refused) -> None:
        self._slot = slot
        self._feed = Feed(server.watch, self)
        self._commands = SocketCommands(server, access, self._feed, refused)
        self._sink: SocketSink | None = None
        self._in: deque[Command] = deque()
        self._in_bytes = 0
        self._under_way: deque[Pending[bytes]] = deque()
        self._publishing = False
        """Whether every unfinished command is a publish."""
        self._out: deque[bytes] = deque()
        self._listening = True
        self._over = False

    # Called by the connection

    def opened(self, sink: SocketSink) -> None:
        """Store the sink that answers and feed messages are written to. Sends nothing."""
        self._sink = sink

    def received(self, message: str | bytes) -> None:
        """Queue one message as a command and run it when possible."""
        if not self._over:
            command = read_command(message)
            self._in.append(command)
            self._in_bytes += len(command.text)
            self._run()

    def room(self) -> None:
        """Send waiting messages and continue with commands and the feed, because the sink accepts data again."""
        self._flush()
        self._run()
        self._feed.resume()

    def closed(self) -> None:
        """Drop everything that waits, close the feed and release the slot. Further calls do nothing."""
        if not self._over:
            self._over = True
            self._in.clear()
            self._out.clear()
            self._feed.close()
            self._slot.release()

    def goodbye(self) -> None:
        """Send the shutdown error and close the WebSocket."""
        self._last_word("server_shutting_down", "the server is shutting down", _GOING_AWAY)

    # Called by the feed

    @property
    def ready(self) -> bool:
        """Whether fewer than `OUT_MAX` messages wait to be sent."""
        return self._sink is not None and len(self._out) < OUT_MAX

    def records(self, name: str, batch: RenderedPage, from_seq: int, head_seq: int) -> None:
        """Send a batch of records; the message is encoded once for all WebSockets."""
        if batch.message is None:
            batch.message = b'{"op":"record","topic":"%b","from_seq":%d,"to_seq":%d,"head_seq":%d,"records":[%b]}' % (
                name.encode(),
                from_seq,
                batch.page.next_from_seq,
                head_seq,
                batch.records,
            )
        self._send(batch.message)

    def tombstone(self, name: str, tombstone: Tombstone) -> None:
        """Send a message that reports a loss."""
        self._send(b'{"op":"tombstone","topic":"%b",%b' % (name.encode(), encode(tombstone)[1:]))

    def caught_up(self, name: str, head_seq: int) -> None:
        """Send a message: the peer has all records of the topic up to its head."""
        self._send(b'{"op":"caught_up","topic":"%b","head_seq":%d}' % (name.encode(), head_seq))

    def deleted(self, name: str, head_seq: int) -> None:
        """Send a message: the topic was deleted, and its subscription has ended."""
        self._send(b'{"op":"topic_deleted","topic":"%b","head_seq":%d,"reason":"deleted"}' % (name.encode(), head_seq))

    def paced(self, names: list[str], retry_after_ms: int) -> None:
        """Do nothing: the WebSocket protocol has no message for delayed topics."""

    def unavailable(self, name: str, error: SegmentUnavailableError) -> None:
        """Send an error message; the subscription continues."""
        self._send(error_message(NO_ID, error.code, f"topic {name!r}: {error.message}"))

    def flush(self) -> None:
        """Do nothing: every message was already sent or queued."""

    def failed(self) -> None:
        """Send an error and close the WebSocket, because a bug stopped the feed."""
        self._last_word("internal", "internal server error; reconnect", _MISTAKE)

    def standing(self) -> None:
        """Return None: WebSockets do not share bytes, because each has its own queue."""
        return

    @property
    def said(self) -> None:
        """Return None: there are no bytes to share."""
        return None

    def say_again(self, said: bytes) -> None:
        """Raise AssertionError: a WebSocket never gets bytes from another one."""
        raise AssertionError("WebSockets do not share bytes")

    # Commands

    def _run(self) -> None:
        """Run the queued commands that may run now; then decide whether to read more from the peer."""
        while self._in and not self._over and self._may_run(self._in[0]):
            command = self._in.popleft()
            self._in_bytes -= len(command.text)
            self._publishing = command.op == PUBLISH
            answer = self._commands.run(command)
            self._under_way.append(answer)
            if answer.settled:
                self._answer()
            else:
                answer.then(self._settled)
        self._listen(len(self._in) < _IN_MAX and self._in_bytes < _IN_BYTES_MAX)

    def _may_run(self, command: Command) -> bool:
        if len(self._out) >= OUT_MAX:
            return False
        if not self._under_way:
            return True
        return self._publishing and command.op == PUBLISH and len(self._under_way) < _UNDER_WAY_MAX

    def _settled(self, _: Pending[bytes]) -> None:
        self._answer()
        self._run()

    def _answer(self) -> None:
        """Send the answers that are ready, in the order of their commands."""
        while self._under_way and self._under_way[0].settled:
            self._send(self._under_way.popleft().result())

    def _listen(self, wanted: bool) -> None:
        if wanted is not self._listening and self._sink is not None and not self._over:
            self._listening = wanted
            self._sink.listen(wanted)

    # Sending

    def _send(self, message: bytes) -> None:
        if not self._over:
            self._out.append(message)
            self._flush()

    def _flush(self) -> None:
        sink = self._sink
        while sink is not None and self._out and sink.room:
            sink.send(self._out.popleft())

    def _last_word(self, code: str, message: str, reason: int) -> None:
        sink = self._sink
        if sink is None or self._over:
            return
        self._feed.close()
        while self._out:
            sink.send(self._out.popleft())
        sink.send(error_message(NO_ID, code, message))
        sink.close(reason)
