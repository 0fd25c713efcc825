"""Queues (http-v0 §14): jobs under a lease. A job carries its lease, so a settled one is never somebody else's."""

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
    """What can be done with a topic that is a queue; `node` names the worker, and is the client's own unless given."""

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
        """Take up to `max` jobs; each is this worker's until its deadline. With `wait_ms`, wait until there is one."""
        body = {"node": node or self._node, "max": max, "lease_ms": lease_ms, "wait_ms": wait_ms or None}
        return self._calls.json(
            "POST", f"{self._path}/claim", Claimed, body=body, repeat=Repeat.AGAIN, wait_s=wait_ms / 1000
        )

    @operation
    def leave(self, *, node: str | None = None) -> Plan[LeaveAnswer]:
        """End the claims of this worker that wait; each is answered without jobs."""
        return self._calls.json("POST", f"{self._path}/leave", LeaveAnswer, body={"node": node or self._node})

    @flow
    def work(self, max: int = 1, *, lease_ms: int | None = None, node: str | None = None) -> Flow[Job]:  # noqa: A002
        """Jobs as they come, at most `max` of them at a time; each ack makes room for the next. Ends with the queue.

        What is not acked when the stream breaks or is closed is handed out again at once.
        """
        query: Query = {"node": node or self._node, "max": max, "lease_ms": lease_ms}
        return kept_open(self._calls, Pushed(self._path, query))

    @operation
    def ack(self, jobs: Jobs, *, node: str | None = None) -> Plan[AckAnswer]:
        """These jobs are done. Those whose lease has ended are in `skipped`."""
        return self._settled("ack", AckAnswer, jobs, node)

    @operation
    def nack(self, jobs: Jobs, *, delay_ms: int = 0, node: str | None = None) -> Plan[NackAnswer]:
        """These jobs go back, and are handed out again after `delay_ms`."""
        return self._settled("nack", NackAnswer, jobs, node, delay_ms=delay_ms)

    @operation
    def extend(self, jobs: Jobs, *, lease_ms: int, node: str | None = None) -> Plan[ExtendAnswer]:
        """These jobs take longer: their deadlines are `lease_ms` from here."""
        return self._settled("extend", ExtendAnswer, jobs, node, lease_ms=lease_ms)

    def _settled(self, verb: str, answer: type[T], jobs: Jobs, node: str | None, **more: Any) -> Plan[T]:
        held = [jobs] if isinstance(jobs, Job) else list(jobs)
        body = {"node": node or self._node, "seqs": [job.seq for job in held]}
        body |= {"lease_ids": [job.lease_id for job in held], **more}
        return self._calls.json("POST", f"{self._path}/{verb}", answer, body=body)

    @flow
    def dead_letters(self) -> Flow[Record | Tombstone]:
        """The jobs that were given up, as they stand in the queue's dead-letter topic. Raises ValueError."""
        state = yield from self._calls.json("GET", self._path, TopicState, query={"touch": False})
        if state.config.dead_letter is None:
            raise ValueError(f"{self.name} has no dead_letter topic; create it with dead_letter=…")
        path = path_of("v0", "topics", state.config.dead_letter)
        yield from read_pages(self._calls, path, as_it_is, may_be_absent=True)
