"""Staged writes and named cursors against a plain model: random histories of parts, commits, cursors and restarts.

The model keeps dicts and a list of values, and knows nothing of files or frames. After every step the records of the
topic, the last batch of every writer and every cursor must be those of the model, power losses included: what a cursor
was told is waited for until it is synced, and everything else is before it is answered.
"""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from driftq.testing import CrashMode, ServerRig
from tests.property.histories import HISTORIES, STEPS

TOPIC = "/v0/topics/t"
TTL_MS = 5000
SYNCED_MS = 20
HISTORY_MIN = 8
"""A topic with fewer records is not deleted: there is nothing to forget yet."""

WRITERS = st.sampled_from(["a", "b"])
CURSORS = st.sampled_from(["x", "y"])
BATCHES = st.integers(0, 4)
TWO = st.integers(0, 1)
EPOCHS = st.sampled_from(["none", "none", "right", "wrong"])

Address = tuple[int, int, int, int]
"""Batch, part, attempt, chunk."""


@dataclass
class Model:
    """A topic in dicts."""

    epoch: int
    log: list[int] = field(default_factory=list)
    staged: dict[str, dict[Address, tuple[list[int], int]]] = field(default_factory=dict)
    """Of every writer what waits: its values, and since when."""
    stale: dict[str, set[Address]] = field(default_factory=dict)
    """Parts of batches that had been published when they were staged: nobody can ask for them, and they go sometime."""
    writers: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """The last batch, and its first and last seq."""
    cursors: dict[str, tuple[int, dict[str, str]]] = field(default_factory=dict)

    def last_batch(self, writer: str) -> int:
        return self.writers[writer][0] if writer in self.writers else -1

    def expire(self, now: int) -> None:
        for writer, parts in self.staged.items():
            self.staged[writer] = {at: found for at, found in parts.items() if found[1] > now - TTL_MS}

    def publish(self, writer: str, batch: int, wanted: list[Address]) -> tuple[int, int]:
        first = len(self.log) + 1
        for address in wanted:
            self.log += self.staged[writer][address][0]
        self.writers[writer] = batch, first, len(self.log)
        self.staged[writer] = {at: found for at, found in self.staged[writer].items() if at[0] > batch}
        return first, len(self.log)


class Staging(RuleBasedStateMachine):
    """Every operation on one topic."""

    @initialize(shards=st.sampled_from([1, 2]))
    def open(self, shards: int) -> None:
        self.rig = ServerRig(wal_shards=shards, stage_ttl_ms=TTL_MS)
        self.values = 0
        self.create()

    def create(self) -> None:
        self.rig.ok("PUT", TOPIC, {"durability": "fsync"})
        self.model = Model(self.rig.ok("GET", f"{TOPIC}/segments")["epoch"])

    def some(self, count: int) -> list[int]:
        """Values that nobody has written before."""
        self.values += count
        return list(range(self.values - count, self.values))

    def epoch(self, which: str) -> dict[str, int]:
        """The field as a caller gives it."""
        return {} if which == "none" else {"epoch": self.model.epoch + (which == "wrong")}

    @rule(count=st.integers(1, 3))
    def write(self, count: int) -> None:
        values = self.some(count)
        self.rig.write("t", *values)
        self.model.log += values

    @rule(writer=WRITERS, batch=BATCHES, part=TWO, attempt=TWO, chunk=TWO, count=st.sampled_from([1, 2, 3, 260]))
    def stage(self, writer: str, batch: int, part: int, attempt: int, chunk: int, count: int) -> None:
        values = self.some(count)
        query = f"writer={writer}&batch={batch}&part={part}&attempt={attempt}&chunk={chunk}"
        done = self.rig.ok("POST", f"{TOPIC}/stage?{query}", {"records": [{"data": value} for value in values]})
        now = self.rig.clock.wall_ms()
        assert (done["records"], done["expires_ts"]) == (count, now + TTL_MS)
        address = (batch, part, attempt, chunk)
        if batch <= self.model.last_batch(writer):
            self.model.stale.setdefault(writer, set()).add(address)
        else:
            self.model.staged.setdefault(writer, {})[address] = values, now

    @rule(writer=WRITERS, batch=BATCHES, epoch=EPOCHS, data=st.data())
    def commit(self, writer: str, batch: int, epoch: str, data: Any) -> None:
        self.model.expire(self.rig.clock.wall_ms())
        waiting = self.model.staged.get(writer, {})
        if waiting and data.draw(st.integers(0, 3)):
            batch = data.draw(st.sampled_from(sorted({address[0] for address in waiting})))
        parts = self.parts(data, sorted({address[1:3] for address in waiting if address[0] == batch}), waiting, batch)
        body = {
            "writer": writer,
            "batch": batch,
            "parts": [dict(zip(("part", "attempt", "chunks"), part, strict=True)) for part in parts],
            **self.epoch(epoch),
        }
        status, answer = self.rig.ask("POST", f"{TOPIC}/commit", body)
        wanted = [(batch, part, attempt, chunk) for part, attempt, chunks in parts for chunk in range(chunks)]
        missing = [address for address in wanted if address not in waiting]
        if epoch == "wrong":
            assert (status, answer["error"]["code"]) == (409, "epoch_mismatch")
            assert answer["error"]["detail"] == {"epoch": self.model.epoch}
        elif batch <= self.model.last_batch(writer):
            last, first_seq, last_seq = self.model.writers[writer]
            seqs = (first_seq, last_seq) if batch == last else (None, None)
            assert (status, answer["deduped"], answer["first_seq"], answer["last_seq"]) == (200, True, *seqs)
        elif missing:
            assert (status, answer["error"]["code"]) == (409, "stage_incomplete")
            named = [dict(zip(("part", "attempt", "chunk"), address[1:], strict=True)) for address in missing]
            assert answer["error"]["detail"] == {"missing": named}
        elif len(set(wanted)) < len(wanted):
            assert (status, answer["error"]["code"]) == (400, "invalid_request")
        else:
            seqs = self.model.publish(writer, batch, wanted)
            assert (status, answer["deduped"], answer["first_seq"], answer["last_seq"]) == (200, False, *seqs)

    @rule(writer=WRITERS, sizes=st.lists(st.sampled_from([1, 2, 260]), min_size=1, max_size=2))
    def publish(self, writer: str, sizes: list[int]) -> None:
        """The next batch as a writer sends it that is not disturbed; one that did not hear the answer asks again."""
        batch = self.model.last_batch(writer) + 1
        for part, size in enumerate(sizes):
            self.stage(writer, batch, part, 0, 0, size)
        parts = [{"part": part, "attempt": 0, "chunks": 1} for part in range(len(sizes))]
        seqs = self.model.publish(writer, batch, [(batch, part, 0, 0) for part in range(len(sizes))])
        for deduped in (False, True):
            answer = self.rig.ok("POST", f"{TOPIC}/commit", {"writer": writer, "batch": batch, "parts": parts})
            assert (answer["deduped"], answer["first_seq"], answer["last_seq"]) == (deduped, *seqs)

    def parts(
        self, data: Any, there: list[tuple[int, int]], waiting: dict[Address, Any], batch: int
    ) -> list[tuple[int, int, int]]:
        """What a commit names: mostly what waits, in any order, sometimes anything."""
        if there and data.draw(st.integers(0, 4)):
            chosen = data.draw(st.lists(st.sampled_from(there), min_size=1, max_size=3))
            return [(part, attempt, 2 if (batch, part, attempt, 1) in waiting else 1) for part, attempt in chosen]
        anything: list[tuple[int, int, int]] = data.draw(
            st.lists(st.tuples(TWO, TWO, st.integers(1, 3)), min_size=1, max_size=2)
        )
        return anything

    @precondition(lambda self: any(self.model.staged.values()))
    @rule(writer=WRITERS)
    def drop(self, writer: str) -> None:
        """What has expired, or is of a batch that is published, may count or not: it goes by itself sometime."""
        most = len(self.model.staged.get(writer, {})) + len(self.model.stale.pop(writer, ()))
        self.model.expire(self.rig.clock.wall_ms())
        waiting = self.model.staged.pop(writer, {})
        assert len(waiting) <= self.rig.ok("DELETE", f"{TOPIC}/stage/{writer}")["dropped"] <= most

    @rule(
        name=CURSORS, rewind=st.booleans(), epoch=EPOCHS, meta=st.sampled_from([None, {}, {"k": "v"}]), data=st.data()
    )
    def put_cursor(self, name: str, rewind: bool, epoch: str, meta: dict[str, str] | None, data: Any) -> None:
        head = len(self.model.log)
        seq = data.draw(st.integers(0, head + 1))
        body = {"seq": seq, "rewind": rewind, **({} if meta is None else {"meta": meta}), **self.epoch(epoch)}
        status, answer = self.rig.ask("PUT", f"{TOPIC}/cursors/{name}", body)
        if epoch == "wrong":
            assert (status, answer["error"]["code"]) == (409, "epoch_mismatch")
            return
        if seq > head:
            assert (status, answer["error"]["code"]) == (400, "invalid_request")
            return
        stored = self.model.cursors.get(name)
        if stored is None or seq >= stored[0] or rewind:
            kept = {} if stored is None else stored[1]
            self.model.cursors[name] = seq, kept if meta is None else meta
        moved = stored is None or self.model.cursors[name][0] != stored[0]
        assert (status, answer["seq"], answer["moved"]) == (200, self.model.cursors[name][0], moved)

    @precondition(lambda self: self.model.cursors)
    @rule(name=CURSORS)
    def delete_cursor(self, name: str) -> None:
        deleted = self.rig.ok("DELETE", f"{TOPIC}/cursors/{name}")["deleted"]
        assert deleted == (self.model.cursors.pop(name, None) is not None)

    @precondition(lambda self: len(self.model.log) > HISTORY_MIN)
    @rule()
    def recreate(self) -> None:
        """Parts, writers and cursors die with their topic."""
        self.rig.ok("DELETE", TOPIC)
        before = self.model.epoch
        self.create()
        assert self.model.epoch != before

    @rule(ms=st.sampled_from([1, 900, 2499, 2500, 4999, 5000]))
    def wait(self, ms: int) -> None:
        self.rig.advance(ms)

    @rule()
    def checkpoint(self) -> None:
        self.rig.server.engine.checkpointer.run()
        self.rig.run()

    @rule(how=st.sampled_from([*CrashMode, "kill", "stop"]), seed=st.integers(0, 99), shards=st.sampled_from([1, 2, 3]))
    def restart(self, how: str, seed: int, shards: int) -> None:
        if how == "kill":
            self.rig.kill(wal_shards=shards)
        elif how == "stop":
            self.rig.restart(wal_shards=shards)
        else:
            self.rig.advance(SYNCED_MS)
            self.rig.crash(CrashMode(how), seed, wal_shards=shards)

    @invariant()
    def the_topic_is_the_model(self) -> None:
        if not hasattr(self, "rig"):
            return
        model = self.model
        found: list[int] = []
        caught_up, cursor = False, 0
        while not caught_up:
            page = self.rig.diff("t", cursor, limit=1000)
            assert page["tombstone"] is None
            found += [record["data"] for record in page["records"]]
            caught_up, cursor = page["caught_up"], page["next_from_seq"]
        assert found == model.log
        for writer in ("a", "b"):
            status, answer = self.rig.ask("GET", f"{TOPIC}/writers/{writer}")
            known = (answer["last_batch"], answer["first_seq"], answer["last_seq"]) if status == 200 else None
            assert known == model.writers.get(writer)
        rows = self.rig.ok("GET", f"{TOPIC}/cursors")["cursors"]
        assert {row["cursor"]: (row["seq"], row["meta"]) for row in rows} == model.cursors


TestStaging = Staging.TestCase
TestStaging.settings = settings(TestStaging.settings, max_examples=HISTORIES // 2, stateful_step_count=STEPS)
