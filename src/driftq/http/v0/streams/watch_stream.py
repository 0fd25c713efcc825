"""The stream of a watch session: sends the events of its feed and heartbeats, and ends the stream of a stuck client.

While the sink is full, nothing is read for the client, so nothing is buffered beyond what the sink has accepted. The
records stay in their topics; those that retention removes meanwhile are reported as a loss.

    room ⇄ no room, unsent bytes decrease             slow: the server waits
             └ no decrease for 30 s                    stuck: a last frame, then the end; the session stays
"""

from collections.abc import Sequence

from msgspec.json import encode

from driftq.engine.load.admission import AdmissionSlot
from driftq.errors import SegmentUnavailableError
from driftq.features.watch.feed import Feed
from driftq.features.watch.rendered_pages import RenderedPage
from driftq.features.watch.watch import Watch
from driftq.features.watch.watch_sessions import Session
from driftq.http import event_stream as sse
from driftq.http.answer import Sink
from driftq.http.v0.streams.watch_events import Frames
from driftq.model.tombstone import Tombstone

LOOK_MS = 5000
STUCK_MS = 30_000

_EVENT = b'event: record\ndata: {"topic":"%b","records":[%b],"from_seq":%d,"to_seq":%d,"head_seq":%d}\n\n'


class WatchStream:
    """One connection of a session: the source of its stream, and the outlet of its feed."""

    def __init__(
        self, watch: Watch, frames: Frames, session: Session, slot: AdmissionSlot, cursors: dict[str, int]
    ) -> None:
        """Note the session as opened; `cursors` are the positions that the client sent."""
        self._watch = watch
        self._frames = frames
        self._session = session
        self._slot = slot
        self._cursors = cursors
        self._feed = Feed(watch, self)
        self._sink: Sink | None = None
        self._parts: list[bytes] = []
        """Frames of the current step that were not written yet."""
        self._over = False
        self._heartbeat = sse.Heartbeat(watch.runtime, watch.clock, session.heartbeat_ms, self._beat)
        self._stall_timer = sse.StallTimer(watch.runtime, LOOK_MS, STUCK_MS, self._looked)
        watch.sessions.opened(session)

    # Called by the connection

    def opened(self, sink: Sink) -> None:
        """Start the stream, its heartbeat and its feed, from the client's positions."""
        self._sink = sink
        sink.write(sse.RETRY)
        self._session.rewind(self._cursors)
        self._heartbeat.start()
        for name, place in self._session.places.items():
            self._feed.add(name, place, self._session.options)
        self._end_if_empty()

    def room(self) -> None:
        """Continue the feed, because the client has read."""
        self._stall_timer.stop()
        self._feed.resume()

    def closed(self) -> None:
        """Stop the feed and the heartbeat, and release the session and the slot. Further calls do nothing."""
        if self._over:
            return
        self._over = True
        self._feed.close()
        self._heartbeat.stop()
        self._stall_timer.stop()
        self._watch.sessions.closed(self._session)
        self._slot.release()

    def goodbye(self) -> None:
        """Send the shutdown error with the session's position, and close the stream."""
        self._last_word(
            {
                "code": "server_shutting_down",
                "error": "shutting_down",
                "message": "the server is shutting down; reconnect with the id of this event",
            },
            self._id(),
        )

    # Called by the feed

    @property
    def ready(self) -> bool:
        """Whether the sink accepts data."""
        return self._sink is not None and self._sink.room

    def records(self, name: str, batch: RenderedPage, from_seq: int, head_seq: int) -> None:
        """Add the event of a batch; its bytes are shared by all streams that send the same batch."""
        event = batch.event
        if event is None:
            event = batch.event = _EVENT % (
                name.encode(),
                batch.records,
                from_seq,
                batch.page.next_from_seq,
                head_seq,
            )
        self._parts += (b"id: ", self._id(), b"\n", event)

    def tombstone(self, name: str, tombstone: Tombstone) -> None:
        """Add an event that reports a loss."""
        self._parts.append(b'%b{"topic":"%b",%b\n\n' % (self._head(b"tombstone"), name.encode(), encode(tombstone)[1:]))

    def caught_up(self, name: str, head_seq: int) -> None:
        """Add an event: the client has read the topic to its head."""
        self._parts.append(self._frames.caught_up(self._id(), name, head_seq))

    def deleted(self, name: str, head_seq: int) -> None:
        """Add an event: the topic was deleted. With its last topic deleted, the stream ends."""
        self._parts.append(
            b'%b{"topic":"%b","head_seq":%d,"reason":"deleted"}\n\n'
            % (self._head(b"topic-deleted"), name.encode(), head_seq)
        )

    def paced(self, names: list[str], retry_after_ms: int) -> None:
        """Add an error event: these topics are delayed because the server is overloaded."""
        self._error(
            {
                "code": 429,
                "error": "throttled",
                "message": "the server is overloaded; these topics are pushed later, and can be polled meanwhile",
                "topics": names,
                "retry_after_ms": retry_after_ms,
            }
        )

    def unavailable(self, name: str, error: SegmentUnavailableError) -> None:
        """Add an error event: records cannot be read at the moment. The stream stays open."""
        self._error(
            {
                "code": 503,
                "error": error.code,
                "message": error.message,
                "topics": [name],
                "retry_after_ms": error.retry_after_ms,
            }
        )

    def flush(self) -> None:
        """Write the events of this step; close the stream if no topic is left."""
        self._send()
        self._end_if_empty()

    def failed(self) -> None:
        """Send an error and close the stream, because a bug stopped the feed."""
        self._last_word({"code": "internal", "error": "internal", "message": "internal server error; reconnect"})

    def standing(self) -> dict[str, int]:
        """Return the cursors of the whole session, which every event id contains."""
        return self._session.cursors()

    @property
    def said(self) -> bytes | None:
        """Return the newest joined bytes of any stream; None if the newest parts were not joined."""
        return self._frames.last

    def say_again(self, said: bytes) -> None:
        """Write bytes that another stream at the same position has sent."""
        self._hand_over((said,))

    # Internals

    def _head(self, event: bytes) -> bytes:
        return sse.head(event, self._id())

    def _id(self) -> bytes:
        """Return the event id of the session's current position."""
        return self._frames.id_of(self._session.cursors())

    def _error(self, body: dict[str, object], event_id: bytes | None = None) -> None:
        self._parts.append(sse.frame(b"error", encode(body), event_id))

    def _last_word(self, body: dict[str, object], event_id: bytes | None = None) -> None:
        if self._sink is not None and not self._over:
            self._feed.close()
            self._error(body, event_id)
            self._send()
            self._sink.close()

    def _send(self) -> None:
        """Write the frames collected in this step."""
        parts, self._parts = self._parts, []
        if parts:
            self._hand_over(self._frames.joined(parts))

    def _hand_over(self, pieces: Sequence[bytes]) -> None:
        sink = self._sink
        if sink is None:
            return
        for piece in pieces:
            sink.push(piece)
        self._heartbeat.spoke()
        if not sink.room:
            self._stall_timer.start(sink, sink.unsent)

    def _beat(self) -> None:
        if self.ready:
            self._parts.append(sse.heartbeat(self._watch.engine.time.wall()))
            self._send()

    def _end_if_empty(self) -> None:
        if not len(self._feed) and self._sink is not None:
            self._heartbeat.stop()
            self._sink.close()

    # A client that does not read

    def _looked(self, stalled: bool) -> None:
        """Free what the feed holds for a client that does not read; end the stream after 30 s without progress."""
        self._feed.let_go()
        if stalled:
            self._last_word(
                {
                    "code": "slow_consumer",
                    "error": "slow_consumer",
                    "message": "nothing was read for 30 s; reconnect with the last id, the session is kept",
                }
            )
