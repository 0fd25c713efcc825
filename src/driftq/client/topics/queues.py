"""Calls for queues (http-v0 §14): jobs under a lease. A `Job` has the id of its lease, and calls that settle it send
the id, so a worker cannot settle a job that another worker holds by then.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

from driftq.client.topics.pages import as_it_is, read_pages
from driftq.client.topics.pushed_jobs import Pushed
from driftq.client.transport.calls import Query, path_of
from driftq.client.transport.event_stream import kept_open
from driftq.client.transport.operations import Operations, flow, operation
from driftq.client.transport.plan import Flow, Plan
from driftq.client.transport.retry import Repeat
from driftq.model.tombstone import Tombstone
from driftq.model.v0_answers import AckAnswer, Claimed, ExtendAnswer, Job, LeaveAnswer, NackAnswer, Record, TopicState

T = TypeVar("T")
Jobs = Job | Iterable[Job]


class QueueOperations(Operations):
    """Calls for a topic that is a queue. `node` is the name of the worker; it defaults to the name of the client."""

    name: str
    _path: str

    @operation
    def claim(
        self,
        max: int = 1,  # noqa: A002
        *,
        lease_ms: int | None = None,
        node: str | None = None,
        wait_ms: int = 0,
    ) -> Plan[Claimed]:
        """Take up to `max` jobs; the worker holds each until its deadline. With `wait_ms`, wait for one that long."""
        body = {"node": node or self._node, "max": max, "lease_ms": lease_ms, "wait_ms": wait_ms or None}
        return self._calls.json(
            "POST", f"{self._path}/claim", Claimed, body=body, repeat=Repeat.AGAIN, wait_s=wait_ms / 1000
        )

    @operation
    def leave(self, *, node: str | None = None) -> Plan[LeaveAnswer]:
        """End the claims of this worker that are waiting at the server; each is answered without jobs."""
        return self._calls.json("POST", f"{self._path}/leave", LeaveAnswer, body={"node": node or self._node})

    @flow
    def work(self, max: int = 1, *, lease_ms: int | None = None, node: str | None = None) -> Flow[Job]:  # noqa: A002
        """Yield jobs as they arrive, at most `max` at a time; each ack makes room for the next. End with the queue.

        Jobs that are not acked when the stream breaks or is closed are handed out again at once.
        """
        query: Query = {"node": node or self._node, "max": max, "lease_ms": lease_ms}
        return kept_open(self._calls, Pushed(self._path, query))

    @operation
    def ack(self, jobs: Jobs, *, node: str | None = None) -> Plan[AckAnswer]:
        """Mark jobs as done. Those whose lease has ended are in `skipped` of the answer."""
        return self._settled("ack", AckAnswer, jobs, node)

    @operation
    def nack(self, jobs: Jobs, *, delay_ms: int = 0, node: str | None = None) -> Plan[NackAnswer]:
        """Give jobs back, to be claimed again after `delay_ms` milliseconds.

        If the queue has a dead-letter topic, a job that was delivered `max_deliveries` times goes there instead.
        """
        return self._settled("nack", NackAnswer, jobs, node, delay_ms=delay_ms)

    @operation
    def extend(self, jobs: Jobs, *, lease_ms: int, node: str | None = None) -> Plan[ExtendAnswer]:
        """Extend the leases of jobs: their deadlines are `lease_ms` milliseconds from now."""
        return self._settled("extend", ExtendAnswer, jobs, node, lease_ms=lease_ms)

    def _settled(self, verb: str, answer: type[T], jobs: Jobs, node: str | None, **more: Any) -> Plan[T]:
        held = [jobs] if isinstance(jobs, Job) else list(jobs)
        body = {"node": node or self._node, "seqs": [job.seq for job in held]}
        body |= {"lease_ids": [job.lease_id for job in held], **more}
        return self._calls.json("POST", f"{self._path}/{verb}", answer, body=body)

    @flow
    def dead_letters(self) -> Flow[Record | Tombstone]:
        """Yield the failed jobs from the dead-letter topic of the queue. Raise ValueError if it has no such topic."""
        state = yield from self._calls.json("GET", self._path, TopicState, query={"touch": False})
        if state.config.dead_letter is None:
            raise ValueError(f"queue {self.name!r} has no dead-letter topic; set one with update(dead_letter=…)")
        path = path_of("v0", "topics", state.config.dead_letter)
        yield from read_pages(self._calls, path, as_it_is, may_be_absent=True)
