"""The handlers of queues: claim, leave, ack, nack, extend (http-v0 §14.2-§14.6, §22.7).

The answer to a claim is joined from the stored bytes of its jobs, without decoding them.
"""

import re

from msgspec import Struct
from msgspec.json import Decoder, encode

from driftq.engine.state.topic import Topic
from driftq.errors import BatchTooLargeError, InvalidRequestError
from driftq.features.queue.claims import ClaimResult
from driftq.features.queue.job_settlement import ExtendedJobs, Settled
from driftq.features.queue.waiting_claims import WaitingClaim
from driftq.http.access import Scope
from driftq.http.answer import Answer
from driftq.http.reply import Reply, json_reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v0.bodies import U32, U64, check_size, check_u64, decode_body, since_ms
from driftq.model.limits import Limits
from driftq.model.v0_answers import AckAnswer, ExtendAnswer, LeaveAnswer, NackAnswer, Performance
from driftq.server import Server
from driftq.system.runtime import Pending

_TOPIC = "/v0/topics/:topic"
_WAIT_MS_MAX = 30_000
_LEASE_ID = re.compile(r"lease_[0-9a-f]+")


class ClaimBody(Struct):
    """The body of a claim."""

    node: str
    max: U32 = 1
    lease_ms: U64 | None = None
    wait_ms: U32 = 0


class QueueLeaveBody(Struct):
    """The body of a leave: the worker whose waiting claims end."""

    node: str


class SettleBody(Struct):
    """The body of an ack."""

    node: str
    seqs: list[U64]
    lease_ids: list[str] = []


class NackBody(SettleBody):
    """The body of a nack."""

    delay_ms: U64 = 0


class ExtendBody(Struct):
    """The body of an extend."""

    node: str
    seqs: list[U64]
    lease_ms: U64
    lease_ids: list[str] = []


_CLAIM = Decoder(ClaimBody)
_LEAVE = Decoder(QueueLeaveBody)
_ACK = Decoder(SettleBody)
_NACK = Decoder(NackBody)
_EXTEND = Decoder(ExtendBody)


def check_node(node: str, limits: Limits) -> None:
    """Raise InvalidRequestError if the name of a worker is empty or too long."""
    if not 0 < len(node.encode()) <= limits.node_bytes_max:
        raise InvalidRequestError(f"node must be 1 to {limits.node_bytes_max} bytes long")


class QueueEndpoints:
    """The handlers of claim, leave, ack, nack and extend."""

    def __init__(self, server: Server) -> None:
        self._queues = server.queues
        self._clock = server.clock
        self._limits = server.settings.limits

    def routes(self) -> list[Route]:
        """Return the routes of claim, leave, ack, nack and extend."""
        return [
            Route("POST", f"{_TOPIC}/claim", self.claim, Scope.READ | Scope.WRITE, guards_name=True),
            Route("POST", f"{_TOPIC}/leave", self.leave, Scope.READ | Scope.WRITE, guards_name=True),
            Route("POST", f"{_TOPIC}/ack", self.ack, Scope.WRITE, guards_name=True),
            Route("POST", f"{_TOPIC}/nack", self.nack, Scope.WRITE, guards_name=True),
            Route("POST", f"{_TOPIC}/extend", self.extend, Scope.WRITE, guards_name=True),
        ]

    def claim(self, request: Request) -> Answer:
        """Lease jobs to a worker. An unknown topic is reported before an invalid worker name."""
        check_size(request, self._limits.body_bytes_max)
        if not request.body:
            raise InvalidRequestError("a claim needs a body with the worker's node")
        body = decode_body(_CLAIM, request, body_bytes_max=self._limits.body_bytes_max)
        check_u64(body.lease_ms, "lease_ms")
        topic, _ = self._queues.backlog.look(request.params[0])
        check_node(body.node, self._limits)
        if body.wait_ms:
            claimed = self._waiting(request, topic, body)
        else:
            claimed = self._queues.claimer.claim(topic, body.node, body.max, body.lease_ms)
        return claimed.mapped(lambda result: self._claim_reply(request, topic.name, result))

    def _waiting(self, request: Request, topic: Topic, body: ClaimBody) -> Pending[ClaimResult]:
        wait_ms = min(body.wait_ms, _WAIT_MS_MAX)
        claim = WaitingClaim(self._queues.waits, topic, body.node, body.max, body.lease_ms, wait_ms)
        if not claim.answer.settled:
            request.on_hang_up = claim.hang_up
            request.waits = True
        return claim.answer

    def leave(self, request: Request) -> Answer:
        """End the waiting claims of a worker."""
        body = decode_body(_LEAVE, request, body_bytes_max=self._limits.body_bytes_max)
        check_node(body.node, self._limits)
        topic, _ = self._queues.backlog.look(request.params[0])
        ended = self._queues.waits.leave(topic.name, body.node)
        return json_reply(200, LeaveAnswer(topic.name, ended, self._figures(request)))

    def _claim_reply(self, request: Request, name: str, claimed: ClaimResult) -> Reply:
        # The name of an existing topic never needs escaping.
        body = b'{"topic":"%b","claimed":[%b],"count":%d,"ready":%d,"performance":%b}' % (
            name.encode(),
            b",".join(claimed.jobs),
            len(claimed.seqs),
            claimed.ready,
            encode(self._figures(request)),
        )
        return Reply(200, body)

    def ack(self, request: Request) -> Answer:
        """Mark jobs as done, so that they are removed from the queue."""
        name = request.params[0]
        body = decode_body(_ACK, request, body_bytes_max=self._limits.body_bytes_max)
        self._check(body.node, body.seqs, body.lease_ids)
        began_ns = self._clock.monotonic_ns()

        def reply(done: Settled) -> Reply:
            waited = since_ms(began_ns, self._clock.monotonic_ns()) if done.synced else 0
            figures = self._figures(request, waited or None)
            return json_reply(200, AckAnswer(name, done.done, done.skipped, done.ready, done.in_flight, figures))

        return self._queues.settler.ack(name, body.node, body.seqs, body.lease_ids).mapped(reply)

    def nack(self, request: Request) -> Answer:
        """Return jobs to the queue, at once or after a delay."""
        name = request.params[0]
        body = decode_body(_NACK, request, body_bytes_max=self._limits.body_bytes_max)
        check_u64(body.delay_ms, "delay_ms")
        self._check(body.node, body.seqs, body.lease_ids)

        def reply(done: Settled) -> Reply:
            figures = self._figures(request)
            return json_reply(200, NackAnswer(name, done.done, done.skipped, done.ready, done.in_flight, figures))

        return self._queues.settler.nack(name, body.node, body.seqs, body.lease_ids, body.delay_ms).mapped(reply)

    def extend(self, request: Request) -> Answer:
        """Extend the leases of jobs that take longer."""
        name = request.params[0]
        body = decode_body(_EXTEND, request, body_bytes_max=self._limits.body_bytes_max)
        check_u64(body.lease_ms, "lease_ms")
        self._check(body.node, body.seqs, body.lease_ids)

        def reply(done: ExtendedJobs) -> Reply:
            deadlines = {str(seq): deadline for seq, deadline in done.deadlines.items()}
            figures = self._figures(request)
            return json_reply(200, ExtendAnswer(name, len(deadlines), done.skipped, deadlines, figures))

        return self._queues.settler.extend(name, body.node, body.seqs, body.lease_ids, body.lease_ms).mapped(reply)

    def _check(self, node: str, seqs: list[int], lease_ids: list[str]) -> None:
        """Check the fields that can be checked without the topic. Raises InvalidRequestError or BatchTooLargeError."""
        check_node(node, self._limits)
        if len(seqs) > self._limits.claim_max:
            raise BatchTooLargeError(
                f"seqs has {len(seqs)} entries; the limit is {self._limits.claim_max}",
                detail={"seqs": len(seqs), "max": self._limits.claim_max},
            )
        check_u64(max(seqs, default=0), "seqs")
        if not lease_ids:
            return
        if len(lease_ids) != len(seqs):
            raise InvalidRequestError("lease_ids must be empty or have as many entries as seqs")
        for lease_id in lease_ids:
            if lease_id and _LEASE_ID.fullmatch(lease_id) is None:
                raise InvalidRequestError("a lease id must be `lease_` followed by lower-case hexadecimal digits")

    def _figures(self, request: Request, fsync_ms: float | None = None) -> Performance:
        return Performance(since_ms(request.began_ns, self._clock.monotonic_ns()), fsync_ms=fsync_ms)
