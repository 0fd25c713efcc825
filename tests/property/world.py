"""An engine and the oracle side by side: every call goes to both, and everything readable is compared.

The caller decides what happens; `random.Random(spice)` fills in what a record looks like or where a reader stands, so
that a failing run is a short list of calls with numbers in them.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from operator import ge
from typing import NamedTuple

import pytest
from msgspec import json, structs

from driftq.codec.record_json import Fields, render_records
from driftq.config import Settings
from driftq.engine.read.topic_page import Page
from driftq.engine.write.appender import AppendResult
from driftq.engine.write.deleter import Deleted, parse_match
from driftq.errors import DriftQError, TopicNotFoundError
from driftq.model.topic_config import Discard, Durability, TopicConfig
from driftq.storage.blocks.rows import Rows
from driftq.system.runtime import Pending
from driftq.testing import (
    CrashMode,
    EngineRig,
    OracleDelete,
    OracleFound,
    OraclePage,
    OraclePut,
    OracleRow,
    OracleState,
    OracleTopic,
    OracleWrite,
    rows_of,
)

NAMES = ("a", "b", "c")
CLASSES = tuple(Durability)
KEYS = ("k1", "k2", "k3")
WORKERS = ("driftq-files", "driftq-blocks")
_TAGS = ("a", "b", "a:1", "a:2", "chat-42:x", "chat-420:x", 'quo"te', "é€", "zz\\", "", None, None)
_NODES = ("n1", "n2", 'n"3', None, None)
_METAS = (b'{"k":"v"}', b'{"long":"' + b"m" * 60 + b'"}', None, None, None)
_MATCHES = ("a", "b", "a:1", "", 'quo"te', "nothing", "chat-42:x")
_PREFIXES = ("a", "a:", "chat-42:", "chat-4", "", "é", "nothing", "b")
_FULL = Fields(tags=True)


class Selectors(NamedTuple):
    """What a delete selects by."""

    before: int | None
    tag: str | None
    prefix: str | None


class Under(NamedTuple):
    """A call that has not been answered."""

    name: str
    op: OracleWrite | OracleDelete | OraclePut
    pending: Pending[AppendResult] | Pending[Deleted] | Pending[bool]


class World:
    """One engine, one oracle."""

    def __init__(self, seed: int | None, settings: Settings, *, cached: bool = True) -> None:
        self.rig = EngineRig(settings, seed=seed)
        self.rig.disk.cached = cached
        self.topics: dict[str, OracleTopic] = {}
        self.under_way: list[Under] = []
        self.creating: dict[str, tuple[OraclePut, Pending[bool]]] = {}
        self.deleting: dict[str, Pending[bool]] = {}
        self.held = False
        self.now = self.latest = self.rig.engine.time.now()
        self.shown: dict[str, tuple[int, int]] = {}
        """Floors that a reader has seen."""

    # Calls

    def write(self, name: str, sizes: Sequence[int], spice: int, *, keys: Sequence[str | None] = ()) -> None:
        """Several writes of one loop turn."""
        rng = random.Random(spice)
        if name in self.creating or name in self.deleting or (self.held and name not in self.topics):
            return
        asked: list[tuple[OracleWrite, Pending[AppendResult]]] = []
        for place, size in enumerate(sizes):
            rows, columns = _some_rows(rng, size)
            op = OracleWrite(rows, 0, keys[place] if place < len(keys) else None)
            pending = self._append(name, op, columns)
            if pending is not None:
                asked.append((op, pending))
        self._drive()
        for op, pending in asked:
            if not pending.settled:
                op.ts = self.rig.engine.time.state().stamp
            if not self.held or self._settles_at_once(name):
                assert pending.settled, f"{op} was not answered"

    def _append(self, name: str, op: OracleWrite, rows: Rows) -> Pending[AppendResult] | None:
        """One write: what must the engine say to it?"""
        engine, now = self.rig.engine, self._present()
        topic = self.topics.get(name)
        created = topic is None
        if topic is None:
            topic = OracleTopic(OracleState(TopicConfig().resolved(name)))
            topic.submitted(OraclePut(TopicConfig().resolved(name), now))
            topic.lasting = 1
        state = topic.state
        state.expire(now)
        if op.key is not None and self._forgotten(state, op.key, now):
            op.key = None
        used = None if op.key is None else state.used(op.key, now)
        same = [] if op.key is None else self._same_key(name, op.key)
        if used is None and not same:
            refused = state.refuses(len(op.rows), op.size, self._inflight(name))
            if refused is not None:
                _expect(refused, lambda: engine.append(name, rows, key=op.key))
                return None
        pending = engine.append(name, rows, key=op.key)
        if used is not None:
            _check_deduped(pending.result(), used.first_seq, used.count)
            return pending
        if same:
            winner = same[0].pending
            pending.then(lambda done: _check_same(done, winner))
            return pending
        op.at = now
        self.latest = max(self.latest, now)
        topic.submitted(op)
        self.topics[name] = topic
        lasts = self._class_to_come(name) is Durability.FSYNC
        under = Under(name, op, pending)
        self.under_way.append(under)
        pending.then(lambda _: self._written(under, topic, lasts=lasts, created=created))
        return pending

    def _written(self, under: Under, topic: OracleTopic, *, lasts: bool, created: bool) -> None:
        self.under_way.remove(under)
        op = under.op
        assert isinstance(op, OracleWrite)
        if under.pending.error is not None:
            assert isinstance(under.pending.error, TopicNotFoundError), under.pending.error
            assert self.topics.get(under.name) is not topic, "a write failed for no reason"
            return
        answer = under.pending.result()
        assert isinstance(answer, AppendResult)
        assert answer.ts >= topic.state.last_ts, "a stamp went back"
        stored = self.rig.engine.time.timeline.moment(answer.ts)
        assert op.at is not None
        assert op.at <= stored <= op.at + 1, "a record whose age is wrong"
        op.at = stored
        op.ts = answer.ts
        topic.committed(op, lasts=lasts)
        assert (answer.count, answer.last_seq) == (len(op.rows), topic.state.head)
        assert (answer.deduped, answer.created) == (False, created)
        assert answer.head_seq >= answer.last_seq

    def delete(self, name: str, selectors: "Selectors") -> None:
        """A delete by one selector or two."""
        before, tag, prefix = selectors
        topic = self.topics.get(name)
        if topic is None or not self._calm(name):
            return
        now = self._present()
        topic.state.expire(now)
        match: object = None if tag is None else tag
        if prefix is not None:
            match = ["tag", "Glob", prefix + "*"]
        op = OracleDelete(topic.state.head + 1, now, before, tag, prefix)
        parsed = None if match is None else parse_match(match)
        pending = self.rig.engine.delete_records(name, before_seq=before, match=parsed)
        topic.submitted(op)
        under = Under(name, op, pending)
        self.under_way.append(under)
        lasts = self._class_to_come(name) in (Durability.DISK, Durability.FSYNC)
        pending.then(lambda _: self._deleted(under, topic, lasts=lasts))
        self._drive()
        assert pending.settled or self.held

    def _deleted(self, under: Under, topic: OracleTopic, *, lasts: bool) -> None:
        self.under_way.remove(under)
        op = under.op
        assert isinstance(op, OracleDelete)
        answer = under.pending.result()
        assert isinstance(answer, Deleted)
        topic.state.expire(self._present())
        topic.committed(op, lasts=lasts)
        state = topic.state
        assert answer == Deleted(op.deleted, state.earliest, state.head, state.count, state.size)

    def put(self, name: str, config: TopicConfig) -> None:
        """Create a topic, or change its config."""
        if not self._calm(name):
            return
        topic = self.topics.get(name)
        if topic is not None and _mixed(topic.state, config):
            config = structs.replace(config, cap_records=0, cap_bytes=0)
        now, resolved = self._present(), config.resolved(name)
        pending = self.rig.engine.put_topic(name, config)
        if topic is None:
            op = OraclePut(resolved, now)
            self.creating[name] = (op, pending)
            pending.then(lambda _: self._created(name, op))
        else:
            topic.state.expire(now)
            op = OraclePut(resolved, now)
            topic.submitted(op)
            under = Under(name, op, pending)
            self.under_way.append(under)
            pending.then(lambda _: self._put(under, topic))
        self._drive()
        assert pending.settled or self.held

    def _created(self, name: str, op: OraclePut) -> None:
        _, pending = self.creating.pop(name)
        assert pending.result() is True
        topic = self.topics[name] = OracleTopic(OracleState(op.config))
        topic.submitted(op)
        topic.committed(op, lasts=True)

    def _put(self, under: Under, topic: OracleTopic) -> None:
        self.under_way.remove(under)
        assert under.pending.result() is False
        topic.committed(under.op, lasts=True)
        if topic.state.durability is Durability.EPHEMERAL:
            topic.head_kept = topic.state.head

    def delete_topic(self, name: str) -> None:
        """Delete a topic, there or not."""
        if not self._calm(name):
            return
        pending = self.rig.engine.delete_topic(name)
        if name not in self.topics:
            assert pending.result() is False
            return
        self.deleting[name] = pending
        pending.then(lambda _: self._topic_gone(name))
        self._drive()
        assert pending.settled or self.held

    def _topic_gone(self, name: str) -> None:
        assert self.deleting.pop(name).result() is True
        del self.topics[name]
        self.shown.pop(name, None)

    def checkpoint(self) -> None:
        """Take a checkpoint; what it finds committed survives from there on."""
        marked = {name: (topic, len(topic.ops), topic.state.head) for name, topic in self.topics.items()}
        settled = not self.under_way

        def taken(done: Pending[bool]) -> None:
            assert done.result()
            for name, (topic, ops, head) in marked.items():
                if settled and self.topics.get(name) is topic:
                    topic.lasting = max(topic.lasting, ops)
                    topic.head_kept = max(topic.head_kept, head)

        self.rig.engine.checkpointer.run().then(taken)
        self._drive()

    def advance(self, ms: int) -> None:
        """Let time pass, unless commits are under way: what a record is stamped with would be anybody's guess."""
        if not self.held:
            self.rig.runtime.advance(ms)

    def set_wall(self, ms: int) -> None:
        """Step the wall clock, unless commits are under way: their stamps would be anybody's guess."""
        if not self.held:
            self.rig.clock.set_wall(self.rig.clock.wall_ms() + ms)

    def hold(self, *workers: str) -> None:
        """From here on nothing is synced, and these workers do nothing."""
        self.held = True
        self.rig.hold_wal()
        for worker in workers:
            self.rig.runtime.hold(worker)

    def release(self) -> None:
        """Go on."""
        for worker in WORKERS:
            self.rig.runtime.release(worker)
        self.rig.release_wal()
        self.held = False
        unanswered = [*self.under_way, *self.creating, *self.deleting]
        assert not unanswered

    # Lives

    def restart(self, shards: int) -> None:
        """A graceful stop and a start."""
        if self.held:
            self.release()
        expired = self._any_ttl()
        self.rig.restart(wal_shards=shards)
        now = self._present_again(expired=expired)
        self._check_names(frozenset(self.topics))
        for name, topic in self.topics.items():
            topic.stopped(self._found(name), now)
            assert not self.rig.topic(name).holes.all or topic.state.holes

    def crash(self, mode: CrashMode | None, seed: int, shards: int) -> None:
        """A power loss, or with no mode a kill, and a start."""
        self._note_time()
        expired = self._any_ttl()
        engine = self.rig.engine
        for name, topic in self.topics.items():
            topic.synced(engine.synced_seq(engine.topic(name)))
        if mode is None:
            self.rig.kill(wal_shards=shards)
        else:
            self.rig.crash(mode, seed, wal_shards=shards)
        self.held = False
        now = self._present_again(expired=expired)
        names = frozenset(topic.name for topic in self.rig.engine.catalog.visible())
        must = frozenset(self.topics) - frozenset(self.deleting)
        assert must <= names, "a topic is gone"
        assert names <= must | frozenset(self.deleting) | frozenset(self.creating), "a topic came from nowhere"
        self._forget_under_way(names)
        for name, topic in self.topics.items():
            state = topic.state
            kept = (state.cap_kept, state.ttl_kept) == (state.cap_lost, state.ttl_lost)
            if state.durability is not Durability.FSYNC or not kept:
                self.shown.pop(name, None)  # the records that evicted, or were evicted, may be lost
            topic.crashed(self._found(name), now)

    def _note_time(self) -> None:
        """The clock was set back, and stays there: give the time that was seen the while it takes to be synced."""
        if self.rig.clock.wall_ms() < self.now:
            if self.held:
                self.rig.clock.set_wall(self.now)
            else:
                self.rig.runtime.advance(1040)

    def _forget_under_way(self, names: frozenset[str]) -> None:
        for name in self.deleting:
            if name not in names:
                del self.topics[name]
                self.shown.pop(name, None)
        for name, (op, _) in self.creating.items():
            if name in names:
                topic = self.topics[name] = OracleTopic(OracleState(op.config))
                topic.submitted(op)
        self.under_way.clear()
        self.creating.clear()
        self.deleting.clear()

    # What is shown

    def check(self, names: Iterable[str], spice: int) -> None:
        """Compare everything readable of some topics, and the sums over all."""
        rng = random.Random(spice)
        now = self._present()
        for topic in self.topics.values():
            topic.state.expire(now)
        self._check_names(frozenset(self.topics))
        for name in names:
            if name in self.topics:
                self._check_topic(name, rng)
        assert not self.rig.order.violations
        assert not self.rig.engine.segment_files.failures
        usage = self.rig.engine.blocks.usage
        for name in self.topics:
            self.rig.topic(name)
        states = [topic.state for topic in self.topics.values()]
        assert (usage.records, usage.payload) == (sum(s.count for s in states), sum(s.size for s in states))

    def _check_names(self, names: frozenset[str]) -> None:
        assert frozenset(topic.name for topic in self.rig.engine.catalog.visible()) == names

    def _check_topic(self, name: str, rng: random.Random) -> None:
        topic, state = self.rig.topic(name), self.topics[name].state
        assert topic.config == state.config
        found = (topic.head, topic.earliest, topic.count, topic.payload, topic.evict_floor)
        assert found == (state.head, state.earliest, state.count, state.size, state.evict_floor)
        assert 1 <= topic.evict_floor <= topic.earliest <= topic.head + 1
        floors = (topic.earliest, topic.evict_floor)
        earlier = self.shown.get(name, floors)
        assert all(map(ge, floors, earlier)), f"floors moved back: {earlier} to {floors}"
        self.shown[name] = floors
        cursor = rng.choice((0, 0, 0, rng.randint(0, state.head + 2), max(0, state.earliest - 2)))
        nodes = rng.choice(((), (), ("n1",), ("n1", 'n"3')))
        limit = rng.choice((0, 1 + state.count // 3, 1 + state.count // 7, 5000))
        budget = rng.choice((0, 0, 1 + state.size // 4, 10_000_000))
        self._walk(name, state, cursor, limit, nodes, budget)

    def _walk(
        self, name: str, state: OracleState, cursor: int, limit: int, nodes: tuple[str, ...], budget: int
    ) -> None:
        raw_nodes = frozenset(node.encode() for node in nodes)
        for _ in range(state.head + 3):
            page = self.rig.page(name, cursor, limit, nodes=raw_nodes, max_batch_bytes=budget)
            expected = state.page(
                cursor, limit=min(limit or 256, 1000), nodes=nodes, budget=min(budget or 1 << 20, 8 << 20)
            )
            _check_page(page, expected)
            cursor = page.next_from_seq
            if page.caught_up:
                return
        raise AssertionError("a reader that never arrives")

    def _found(self, name: str) -> OracleFound:
        texts, cursor = [], 0
        while True:
            page = self.rig.page(name, cursor, 1000, max_batch_bytes=8 << 20)
            if page.slices:
                texts.append(render_records(page, _FULL))
            cursor = page.next_from_seq
            if page.caught_up:
                break
        topic = self.rig.topic(name)
        holes, text = list(topic.holes.all), b",".join(texts)
        return OracleFound(topic.config, topic.head, topic.last_ts, topic.cap_lost, topic.ttl_lost, holes, text)

    # The rest

    def _present(self) -> int:
        """The engine's time: while it runs it never goes back, whatever the wall clock does."""
        now = self.rig.engine.time.now()
        assert now >= self.now, "time went back"
        self.now = now
        return now

    def _present_again(self, *, expired: bool) -> int:
        """The same behind a start: where a reader may have seen records expire, it has not gone back either."""
        if not (expired and self._any_ttl()):
            self.now = 0
        return self._present()

    def _any_ttl(self) -> bool:
        return any(topic.config.ttl_ms for topic in self.rig.engine.catalog.visible())

    def _forgotten(self, state: OracleState, key: str, now: int) -> bool:
        """Was the key out of its window before the clock was set back? Then it may be remembered or not."""
        self.latest = max(self.latest, now)
        return state.used(key, now) is not None and state.used(key, self.latest) is None

    def _drive(self) -> None:
        self.rig.runtime.run_until_idle()

    def _same_key(self, name: str, key: str) -> list[Under]:
        return [u for u in self.under_way if u.name == name and isinstance(u.op, OracleWrite) and u.op.key == key]

    def _inflight(self, name: str) -> tuple[int, int]:
        ops = [under.op for under in self.under_way if under.name == name]
        writes = [op for op in ops if isinstance(op, OracleWrite)]
        return sum(len(op.rows) for op in writes), sum(op.size for op in writes)

    def _class_to_come(self, name: str) -> Durability:
        """The class of a write that comes behind everything that is under way."""
        puts = [u.op for u in self.under_way if u.name == name and isinstance(u.op, OraclePut)]
        if puts:
            return puts[-1].config.resolved_durability
        topic = self.topics.get(name)
        return Durability.DISK if topic is None else topic.state.durability

    def _settles_at_once(self, name: str) -> bool:
        if any(under.name == name for under in self.under_way):
            return False
        return self._class_to_come(name) in (Durability.EPHEMERAL, Durability.MEMORY)

    def _calm(self, name: str) -> bool:
        """Is no control operation of this topic under way?"""
        busy = any(u.name == name and isinstance(u.op, OraclePut) for u in self.under_way)
        return not busy and name not in self.creating and name not in self.deleting


def _some_rows(rng: random.Random, count: int) -> tuple[list[OracleRow], Rows]:
    """Records of every look, and the same as columns."""
    batch_node = rng.choice(("n1", 'n"3', None, None, None))
    tagged, noded, meta = rng.random() < 0.7, rng.random() < 0.4, rng.random() < 0.3
    rows = []
    for _ in range(count):
        data = rng.choice((b"0", b'"%d"' % rng.getrandbits(20), b'"' + b"x" * rng.randint(0, 120) + b'"', b"[%1,2]"))
        own = rng.choice(_NODES) if noded else None
        rows.append(
            OracleRow(
                b"[1,2]" if data == b"[%1,2]" else data,
                rng.choice(_TAGS) if tagged else None,
                own if own is not None else batch_node,
                rng.choice(_METAS) if meta else None,
            )
        )
    own_nodes = [row.node for row in rows] if noded else None
    return rows, rows_of(
        [row.data for row in rows],
        tags=[row.tag for row in rows] if tagged else None,
        nodes=own_nodes,
        metas=[row.meta for row in rows] if meta else None,
        batch_node=batch_node,
    )


def some_config(rng: random.Random) -> TopicConfig:
    """A config of any class, with caps, TTL and all that."""
    return TopicConfig(
        durability=rng.choice(CLASSES),
        cap_records=rng.choice((0, 0, 3, 10, 40)),
        cap_bytes=rng.choice((0, 0, 0, 100, 900)),
        ttl_ms=rng.choice((0, 0, 0, 300, 2500)),
        discard=rng.choice((Discard.OLD, Discard.OLD, Discard.REJECT)),
        dedupe_node=rng.random() < 0.8,
        idempotency_window_ms=2000,
    )


def _mixed(state: OracleState, config: TopicConfig) -> bool:
    """Will the topic hold records that are written down beside some that are not?

    What a cap takes is a function of the log, and the latter are not in it: such a topic has no caps here.
    """
    kinds = {record.lasting for record in state.records.values()}
    return bool(kinds) and kinds != {config.resolved_durability is not Durability.EPHEMERAL}


def some_match(rng: random.Random, state: OracleState | None) -> Selectors:
    """Selectors of a delete."""
    head = 10 if state is None else state.head
    earliest = 1 if state is None else state.earliest
    before = rng.choice((rng.randint(0, head + 3), rng.randint(earliest, head + 1), rng.randint(earliest, head + 1)))
    kind = rng.randrange(5)
    return Selectors(
        before if kind in (0, 1, 2) else None,
        rng.choice(_MATCHES) if kind in (1, 3) else None,
        rng.choice(_PREFIXES) if kind in (2, 4) else None,
    )


def _expect(code: str, call: Callable[[], object]) -> None:
    with pytest.raises(DriftQError) as refused:
        call()
    assert refused.value.code == code


def _check_deduped(answer: AppendResult, first: int, count: int) -> None:
    assert answer.deduped
    assert (answer.first_seq, answer.count, answer.head_seq) == (first, count, first + count - 1)


def _check_same(done: Pending[AppendResult], winner: Pending[AppendResult] | Pending[Deleted] | Pending[bool]) -> None:
    if winner.error is not None:
        assert done.error is not None
        return
    won = winner.result()
    assert isinstance(won, AppendResult)
    _check_deduped(done.result(), won.first_seq, won.count)


def _check_page(page: Page, expected: OraclePage) -> None:
    assert page.tombstone == expected.tombstone
    found = (page.next_from_seq, page.head_seq, page.earliest_seq)
    assert found == (expected.next_from_seq, expected.head_seq, expected.earliest_seq)
    assert (page.lag, page.size) == (page.head_seq - page.next_from_seq, len(expected.records))
    text = render_records(page, _FULL)
    if text != b",".join([record.text for record in expected.records]):
        assert json.decode(b"[%b]" % text) == [json.decode(record.text) for record in expected.records]
