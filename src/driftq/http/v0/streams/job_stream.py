"""Jobs sent as events: `GET …/work` (http-v0 §14.9). `features/queue/job_push` decides when; this module encodes."""

from msgspec.json import encode

from driftq.engine.load.admission import AdmissionSlot
from driftq.engine.state.topic import Topic
from driftq.errors import SegmentUnavailableError
from driftq.features.queue.claims import ClaimResult
from driftq.features.queue.job_push import Push
from driftq.http import event_stream as sse
from driftq.http.access import Scope
from driftq.http.answer import Sink, StreamAnswer
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v0.queues import check_node
from driftq.server import Server

_HEARTBEAT_MS = 15_000
_GONE = 409
_SHUTTING_DOWN = "server_shutting_down"


class JobStreamEndpoint:
    """The handler of `GET /v0/topics/:topic/work`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._limits = server.settings.limits

    def routes(self) -> list[Route]:
        """Return the route of the job stream."""
        return [
            Route(
                "GET",
                "/v0/topics/:topic/work",
                self.work,
                Scope.READ | Scope.WRITE,
                guards_name=True,
                stream=True,
                form_token=True,
            )
        ]

    def work(self, request: Request) -> StreamAnswer:
        """Send jobs to a worker until it disconnects. An invalid worker name is reported before an unknown topic."""
        node = request.argument("node") or ""
        check_node(node, self._limits)
        topic, _ = self._server.queues.backlog.look(request.params[0])
        limit = min(max(request.number("max", 1), 1), self._limits.claim_max)
        lease_ms = request.number("lease_ms", -1)
        slot = self._server.admission.take_stream(request.access.key_id)
        return StreamAnswer(
            WorkSource(self._server, topic, node, limit, lease_ms if lease_ms >= 0 else None, slot),
            headers=sse.HEADERS,
        )


class WorkSource:
    """The event stream of one worker."""

    def __init__(
        self, server: Server, topic: Topic, node: str, limit: int, lease_ms: int | None, slot: AdmissionSlot
    ) -> None:
        self._server = server
        self._topic = topic
        self._node = node
        self._limit = limit
        self._lease_ms = lease_ms
        self._slot = slot
        self._prefix = b'{"topic":"%b",' % topic.name.encode()
        self._sink: Sink | None = None
        self._push: Push | None = None
        self._heartbeat = sse.Heartbeat(server.runtime, server.clock, _HEARTBEAT_MS, self._beat)

    def opened(self, sink: Sink) -> None:
        """Start the stream and the delivery of jobs."""
        self._sink = sink
        sink.write(sse.RETRY)
        self._beat()
        self._heartbeat.start()
        self._push = Push(
            self._server.queues.pusher,
            self._topic,
            self._node,
            self._limit,
            self._lease_ms,
            deliver=self._deliver,
            has_room=lambda: sink.room,
            unavailable=self._unavailable,
            ended=self._ended,
        )

    def room(self) -> None:
        """Continue delivering jobs, because the sink accepts data again."""
        if self._push is not None:
            self._push.wake()

    def closed(self) -> None:
        """Stop the delivery and return the unfinished jobs of this stream to the queue."""
        self._heartbeat.stop()
        self._slot.release()
        self._sink = None
        if self._push is not None:
            self._push.close()

    def goodbye(self) -> None:
        """Send the shutdown error and close the stream."""
        self._fail(_SHUTTING_DOWN, "the server is shutting down")

    def _unavailable(self, error: SegmentUnavailableError) -> None:
        """Send an error event: the jobs cannot be read at the moment. The stream stays open."""
        if self._sink is not None:
            data = {
                "code": 503,
                "error": error.code,
                "message": error.message,
                "topics": [self._topic.name],
                "retry_after_ms": error.retry_after_ms,
            }
            self._sink.write(sse.frame(b"error", encode(data)))
            self._heartbeat.spoke()

    def _ended(self) -> None:
        self._fail(_GONE, "the queue has been deleted")

    def _fail(self, code: int | str, message: str) -> None:
        """Send a last error event and close the stream."""
        if self._sink is not None:
            data = encode({"code": code, "error": "not_a_queue" if code == _GONE else code, "message": message})
            self._sink.write(sse.frame(b"error", data))
            self._sink.close()

    def _deliver(self, claimed: ClaimResult) -> None:
        if self._sink is None:
            return
        frames = [
            sse.frame(b"job", self._prefix + job[1:], b"%d" % seq)
            for seq, job in zip(claimed.seqs, claimed.jobs, strict=True)
        ]
        self._sink.write(b"".join(frames))
        self._heartbeat.spoke()

    def _beat(self) -> None:
        if self._sink is not None and self._sink.room:
            self._sink.write(sse.heartbeat(self._server.clock.wall_ms()))
