"""Queues against a plain model: random histories of every queue operation, deletes, time and restarts.

The model keeps a dict per job and knows nothing of heaps, cursors or frames. After every step the counters, who holds
what, the deliveries and the records that are left must be those of the model.
"""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from driftq.testing import CrashMode
from tests.property.histories import HISTORIES
from tests.unit.features.queue.rig import QueueRig

NODES = st.sampled_from(["a", "b"])
LEASES = st.sampled_from([100, 1000, 60_000])


@dataclass
class Job:
    """One job as the contract sees it."""

    state: str = "fresh"
    node: str = ""
    token: str = ""
    moment: int = 0
    """Deadline of a held one, end of the delay of a delayed one."""
    deliveries: int = 0


@dataclass
class Model:
    """A queue in a dict."""

    durable: bool
    deliveries_max: int
    jobs: dict[int, Job] = field(default_factory=dict)
    dead: list[int] = field(default_factory=list)

    def sweep(self, now: int) -> None:
        for job in self.jobs.values():
            if (job.state == "held" and job.moment < now) or (job.state == "delayed" and job.moment <= now):
                job.state = "back"

    def claim(self, limit: int) -> list[int]:
        """Who is given out, and who moves to the dead letters."""
        given: list[int] = []
        supply = [seq for state in ("back", "fresh") for seq, job in sorted(self.jobs.items()) if job.state == state]
        for seq in supply:
            if len(given) == limit:
                break
            job = self.jobs[seq]
            if job.state == "back" and 0 < self.deliveries_max <= job.deliveries:
                self.dead.append(seq)
                del self.jobs[seq]
            else:
                given.append(seq)
        return sorted(given)

    def settled(self, node: str, seqs: list[int], tokens: list[str]) -> tuple[list[int], list[int]]:
        """What of this the node holds, under these tokens, and what is skipped."""
        mine: list[int] = []
        skipped: list[int] = []
        for place, seq in enumerate(seqs):
            job = self.jobs.get(seq)
            fits = job is not None and job.state == "held" and job.node == node and seq not in mine
            if fits and job is not None and (not tokens or tokens[place] in ("", job.token)):
                mine.append(seq)
            else:
                skipped.append(seq)
        return mine, skipped

    def restart(self) -> None:
        if not self.durable:
            self.jobs = {seq: Job() for seq in self.jobs}

    def counters(self) -> tuple[int, int, int]:
        states = [job.state for job in self.jobs.values()]
        return states.count("fresh") + states.count("back"), states.count("held"), len(self.dead)


class Queue(RuleBasedStateMachine):
    """Every operation on one queue."""

    @initialize(durable=st.booleans(), deliveries_max=st.sampled_from([0, 3]), shards=st.sampled_from([1, 2]))
    def open(self, durable: bool, deliveries_max: int, shards: int) -> None:
        self.rig = QueueRig(wal_shards=shards)
        self.rig.queue(leases_durable=durable, max_deliveries=deliveries_max, dead_letter="dead")
        self.model = Model(durable, deliveries_max)
        self.last = 0
        self.tokens: list[str] = [""]

    @property
    def now(self) -> int:
        return self.rig.clock.wall_ms()

    @rule(count=st.integers(3, 8))
    def write(self, count: int) -> None:
        self.rig.write("q", *range(count))
        for _ in range(count):
            self.last += 1
            self.model.jobs[self.last] = Job()

    @rule(node=NODES, limit=st.integers(1, 8), lease_ms=LEASES)
    def claim(self, node: str, limit: int, lease_ms: int) -> None:
        self.model.sweep(self.now)
        expected = self.model.claim(limit)
        found = self.rig.claim(node=node, limit=limit, lease_ms=lease_ms)
        assert [job["$seq"] for job in found] == expected
        for given in found:
            job = self.model.jobs[given["$seq"]]
            job.deliveries += 1
            job.state, job.node, job.token, job.moment = "held", node, given["lease_id"], self.now + lease_ms
            assert (given["deliveries"], given["deadline"]) == (job.deliveries, job.moment)
            assert given["lease_id"] not in self.tokens, "a lease id names one delivery"
            self.tokens.append(given["lease_id"])

    def some(self, data: Any) -> tuple[str, list[int]]:
        """A node and seqs to settle: mostly what it holds, sometimes anything."""
        node = data.draw(NODES)
        held = [seq for seq, job in self.model.jobs.items() if job.state == "held" and job.node == node]
        seqs = data.draw(st.lists(st.sampled_from(held), unique=True, max_size=6)) if held else []
        if data.draw(st.integers(0, 3)) == 0:
            seqs += data.draw(st.lists(st.integers(1, self.last + 1), max_size=3))
        return node, seqs

    def tokens_for(self, data: Any, seqs: list[int]) -> list[str]:
        """None, the right ones, or any."""
        match data.draw(st.sampled_from(["none", "right", "any"])):
            case "none":
                return []
            case "right":
                return [self.model.jobs[seq].token if seq in self.model.jobs else "" for seq in seqs]
            case _:
                return [data.draw(st.sampled_from(self.tokens[-12:])) for _ in seqs]

    @rule(data=st.data())
    def ack(self, data: Any) -> None:
        node, seqs = self.some(data)
        tokens = self.tokens_for(data, seqs)
        self.model.sweep(self.now)
        mine, skipped = self.model.settled(node, seqs, tokens)
        done = self.rig.ack("q", *seqs, node=node, tokens=tuple(tokens))
        assert (done.done, done.skipped) == (len(mine), skipped)
        for seq in mine:
            del self.model.jobs[seq]
        assert (done.ready, done.in_flight) == self.model.counters()[:2]

    @rule(data=st.data(), delay_ms=st.sampled_from([0, 0, 500]))
    def nack(self, data: Any, delay_ms: int) -> None:
        node, seqs = self.some(data)
        tokens = self.tokens_for(data, seqs)
        self.model.sweep(self.now)
        mine, skipped = self.model.settled(node, seqs, tokens)
        done = self.rig.nack("q", *seqs, node=node, tokens=tuple(tokens), delay_ms=delay_ms)
        assert (done.done, done.skipped) == (len(mine), skipped)
        for seq in mine:
            job = self.model.jobs[seq]
            job.state, job.moment = ("delayed", self.now + delay_ms) if delay_ms else ("back", 0)

    @rule(data=st.data(), lease_ms=LEASES)
    def extend(self, data: Any, lease_ms: int) -> None:
        node, seqs = self.some(data)
        tokens = self.tokens_for(data, seqs)
        self.model.sweep(self.now)
        mine, skipped = self.model.settled(node, seqs, tokens)
        done = self.rig.extend("q", *seqs, node=node, tokens=tuple(tokens), lease_ms=lease_ms)
        assert (sorted(done.deadlines), done.skipped) == (sorted(mine), skipped)
        for seq in mine:
            self.model.jobs[seq].moment = self.now + lease_ms

    @precondition(lambda self: self.last)
    @rule(data=st.data())
    def delete(self, data: Any) -> None:
        seqs = data.draw(st.lists(st.integers(1, self.last), max_size=3))
        self.rig.run(self.rig.engine.delete_records("q", seqs=seqs))
        for seq in seqs:
            self.model.jobs.pop(seq, None)

    @precondition(lambda self: self.last)
    @rule(data=st.data())
    def delete_before(self, data: Any) -> None:
        before = data.draw(st.integers(1, min(self.model.jobs, default=1) + 2))
        self.rig.delete("q", before_seq=before)
        self.model.jobs = {seq: job for seq, job in self.model.jobs.items() if seq >= before}

    @rule(ms=st.sampled_from([1, 99, 100, 101, 499, 500, 1000, 5000]))
    def wait(self, ms: int) -> None:
        self.rig.runtime.advance(ms)

    @rule()
    def checkpoint(self) -> None:
        self.rig.checkpoint()

    @rule(how=st.sampled_from([*CrashMode, "kill", "stop"]), seed=st.integers(0, 99), shards=st.sampled_from([1, 2, 3]))
    def restart(self, how: str, seed: int, shards: int) -> None:
        dead_lettered = self.rig.counters()[2]
        if how == "kill":
            self.rig.kill(wal_shards=shards)
        elif how == "stop":
            self.rig.restart(wal_shards=shards)
            assert self.rig.counters()[2] == dead_lettered
        else:
            self.rig.crash(CrashMode(how), seed, wal_shards=shards)
        # The counter is kept as far as the last checkpoint.
        found = self.rig.counters()[2]
        assert found <= dead_lettered
        _, table = self.rig.queues.backlog.look("q")
        table.dead_lettered = dead_lettered
        self.model.restart()

    @invariant()
    def the_queue_is_the_model(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.model.sweep(self.now)
        jobs = self.model.jobs
        assert self.rig.counters() == self.model.counters()
        assert self.rig.seqs("q") == sorted(jobs)
        found = self.rig.projection()
        assert {seq: (node, moment) for seq, (_, node, moment) in found["held"].items()} == {
            seq: (job.node, job.moment) for seq, job in jobs.items() if job.state == "held"
        }
        assert found["delayed"] == {seq: job.moment for seq, job in jobs.items() if job.state == "delayed"}
        delivered = {seq: job.deliveries for seq, job in jobs.items() if job.state != "fresh"}
        assert {seq: found["deliveries"][seq] for seq in delivered} == delivered
        dead = self.rig.walk("dead")[0] if self.model.dead else []
        assert {int(letter["meta"]["$dead_letter_src_seq"]) for letter in dead} == set(self.model.dead)


TestQueue = Queue.TestCase
TestQueue.settings = settings(TestQueue.settings, max_examples=HISTORIES)
