"""Judges a recovered server by the ledger: every promise that can be checked from outside."""

from collections import defaultdict

from driftq.engine.engine import Engine
from driftq.engine.state.topic import Topic
from driftq.model.limits import RESERVE_MAX
from driftq.model.tombstone import Reason
from driftq.model.topic_config import Durability
from driftq.testing import ManualRuntime
from tests.crash.ledger import SYNCED_CLASSES, Acked, Ledger, origin
from tests.crash.reading import Reading, Record, read_all


class Violation(AssertionError):  # noqa: N818 - a broken promise is no error of the tests
    """A promise is broken."""


def require(kept: bool, message: str) -> None:
    """One promise."""
    if not kept:
        raise Violation(message)


def judge(engine: Engine, runtime: ManualRuntime, ledger: Ledger, *, limit: int = 256) -> dict[str, Reading]:
    """All of them, for every topic there should be. Raises Violation; returns what readers saw."""
    report = engine.recovered
    require(not report.damaged and not report.control_lost, f"a crash was taken for damage: {report}")
    require(not report.refused_snapshots, f"a crash left a checkpoint that cannot be read: {report}")
    for name in ledger.names:
        _judge_name(engine, ledger, name)
    readings = {}
    for topic in engine.catalog.visible():
        require(topic.name in ledger.names, f"nobody asked for topic {topic.name}")
        reading = readings[topic.name] = read_all(engine, runtime, topic.name, limit=limit)
        _Judged(engine, ledger, topic, reading).all()
    return readings


def _judge_name(engine: Engine, ledger: Ledger, name: str) -> None:
    topic = engine.catalog.find(name)
    allowed = ledger.allowed(name)
    if topic is None:
        require(any(op.config is None for op in allowed), f"{name}: an acked topic is gone")
    else:
        found = [op for op in allowed if op.config == topic.config and op.instance == topic.id]
        require(bool(found), f"{name}: is {topic.id} {topic.config}, and none of {allowed}")


class _Judged:
    """One topic on trial."""

    def __init__(self, engine: Engine, ledger: Ledger, topic: Topic, reading: Reading) -> None:
        self._engine = engine
        self._ledger = ledger
        self._topic = topic
        self._records = reading.records
        self._tombstones = reading.tombstones
        self._by_seq = {record.seq: record for record in reading.records}
        self._acked: dict[int, Acked] = {
            seq: acked for (instance, seq), acked in ledger.acked.items() if instance == topic.id
        }
        self._lost: dict[int, Acked] = {
            seq: lost for (instance, seq), lost in ledger.lost.items() if instance == topic.id
        }
        self._configs = [*ledger.configs(topic.id)]
        self._classes = {config.resolved_durability for config in self._configs}

    def all(self) -> None:
        """Every check."""
        self.numbers()
        self.records_are_real()
        self.acked_are_there()
        self.gaps_are_explained()
        self.memory_is_a_prefix()
        self.heads_and_floors()

    def _require(self, kept: bool, message: str) -> None:
        require(kept, f"{self._topic.name}: {message}")

    def numbers(self) -> None:
        """What a topic says about itself agrees with what it shows."""
        topic, records = self._topic, self._records
        seqs = [record.seq for record in records]
        if seqs != sorted(set(seqs)):
            raise Violation(f"{topic.name}: seqs out of order: {seqs}")
        times = [record.ts for record in records]
        if times != sorted(times):
            raise Violation(f"{topic.name}: times go back: {times}")
        payload = sum(len(record.data) + len(record.meta or b"") for record in records)
        self._require(topic.count == len(records), f"count is {topic.count}, shown are {len(records)}")
        self._require(topic.payload == payload, f"payload is {topic.payload}, shown are {payload}")
        first = seqs[0] if seqs else topic.head + 1
        self._require(topic.earliest == first, f"earliest is {topic.earliest}, the first shown is {first}")
        self._require(
            1 <= topic.evict_floor <= topic.earliest <= topic.head + 1,
            f"floors out of order: {topic.evict_floor} {topic.earliest} {topic.head}",
        )
        caps = topic.config
        self._require(not caps.cap_records or topic.count <= caps.cap_records, "more records than the cap allows")
        self._require(not caps.cap_bytes or topic.payload <= caps.cap_bytes, "more bytes than the cap allows")

    def records_are_real(self) -> None:
        """Nothing is invented, nothing deleted is back, and a write is there with its own seqs, whole."""
        ledger, instance = self._ledger, self._topic.id
        deletes = [delete for delete in ledger.deletes.values() if delete.promised and delete.instance == instance]
        of_write: dict[int, list[tuple[int, Record]]] = defaultdict(list)
        for record in self._records:
            number, row = origin(record.data)
            write = ledger.writes.get(number)
            if write is None or write.instance != instance or write.rows[row] != record[2:]:
                raise Violation(f"{self._topic.name}: nobody wrote {record}; {number} is {write}")
            if write.first_seq and (record.seq, record.ts) != (write.first_seq + row, write.ts):
                raise Violation(f"{self._topic.name}: {record} was acked as {write.first_seq + row}, {write.ts}")
            acked = self._acked.get(record.seq)
            if acked is not None and acked.record != record:
                raise Violation(f"{self._topic.name}: seq {record.seq} was {acked}, and now it is {record}")
            if any(delete.selects(instance, record.seq, record.tag) for delete in deletes):
                raise Violation(f"{self._topic.name}: {record} is back from a delete")
            of_write[number].append((row, record))
        for number, found in of_write.items():
            self._whole(number, found)

    def _whole(self, number: int, found: list[tuple[int, Record]]) -> None:
        """All rows of a write, but for those that went since."""
        rows = self._ledger.writes[number].rows
        first_seq = found[0][1].seq - found[0][0]
        if any(record.seq != first_seq + row for row, record in found):
            raise Violation(f"{self._topic.name}: write {number} is scattered")
        if len(found) == len(rows):
            return
        there = {row for row, _ in found}
        for row, fields in enumerate(rows):
            seq = first_seq + row
            gone = row in there or seq < self._topic.evict_floor or self._asked_to_go(seq, fields.tag)
            self._require(gone, f"write {number} is there in part: row {row} is missing")

    def _asked_to_go(self, seq: int, tag: bytes | None) -> bool:
        return self._ledger.may_be_deleted(self._topic.id, seq, tag)

    def acked_are_there(self) -> None:
        """Every acked record is there as its class promised, unless it was deleted, evicted or expired."""
        synced = self._ledger.synced.get(self._topic.id, 0)
        shown = {record.data for record in self._records} if self._lost else ()
        for lost in self._lost.values():
            if lost.record.data in shown:
                raise Violation(f"{self._topic.name}: {lost.record} was gone, and is back")
        for seq, acked in self._acked.items():
            there = seq in self._by_seq
            if there and acked.durability is not Durability.EPHEMERAL:
                continue
            if acked.durability is Durability.EPHEMERAL:
                self._require(not there, f"{acked.record} was never on disk, and is there")
                continue
            if self._asked_to_go(seq, acked.record.tag) or self._went(acked.record):
                continue
            self._require(acked.durability is not Durability.FSYNC, f"lost an acked record: {acked.record}")
            self._require(seq > synced, f"lost {acked.record}, which was said to be synced ({synced})")
            if acked.durability is Durability.DISK:
                self._require(self._in_hole(seq, Reason.CRASH), f"lost {acked.record} without a hole")

    def _went(self, record: Record) -> bool:
        """Did retention take it, and might it have?"""
        topic = self._topic
        if record.seq <= topic.cap_lost:
            bound = self._ledger.bounds.cap_lost.get(topic.id, topic.cap_lost)
            self._require(topic.cap_lost <= bound, f"the caps took up to {topic.cap_lost}, and should up to {bound}")
            return True
        if record.seq <= topic.ttl_lost:
            ttls = [config.ttl_ms for config in self._configs if config.ttl_ms]
            now = self._engine.time.now()
            self._require(bool(ttls) and now - record.ts > min(ttls), f"{record} is not old enough at {now}")
            return True
        return False

    def _in_hole(self, seq: int, reason: Reason | None = None) -> bool:
        hole = self._topic.holes.at_or_after(seq)
        return hole is not None and hole.first <= seq and reason in (None, hole.reason)

    def gaps_are_explained(self) -> None:
        """Every seq up to the head is shown, or told to a reader from 0, or wished gone, or nobody cares."""
        told: set[int] = set()
        for tombstone in self._tombstones:
            told.update(range(tombstone.gap_from, tombstone.gap_to + 1))
            self._require(tombstone.reason is not Reason.CORRUPTION, f"a crash is no corruption: {tombstone}")
            self._require(not told & self._by_seq.keys(), f"{tombstone} covers records that are there")
        careless = bool(self._classes & {Durability.EPHEMERAL, Durability.MEMORY})
        for seq in range(1, self._topic.head + 1):
            if seq in self._by_seq or seq in told:
                continue
            acked = self._acked.get(seq) or self._lost.get(seq)
            if acked is None:
                self._require(careless, f"seq {seq} is missing in silence, and nobody knows what it was")
            elif acked.durability in SYNCED_CLASSES:
                self._require(self._asked_to_go(seq, acked.record.tag), f"{acked.record} is missing in silence")
        for hole in self._topic.holes.all:
            if hole.reason is Reason.CRASH and not hole.at_most:
                missing = [seq for seq in (*self._acked, *self._lost) if hole.first <= seq <= hole.last]
                self._require(bool(missing), f"{hole} holds no record that was acked")
            covered = hole.last < self._topic.evict_floor or set(range(hole.first, hole.last + 1)) <= told
            self._require(covered, f"a reader from 0 was not told of {hole}")

    def memory_is_a_prefix(self) -> None:
        """No record of `memory` stands behind one that is missing."""
        shown = [seq for seq in self._by_seq if seq in self._acked and self._acked[seq].durability is Durability.MEMORY]
        last = max(shown, default=0)
        for seq, acked in self._acked.items():
            if acked.durability is Durability.MEMORY and seq < last and seq not in self._by_seq:
                gone = self._asked_to_go(seq, acked.record.tag) or self._went(acked.record)
                self._require(gone, f"seq {last} is there, and {acked.record} before it is not")

    def heads_and_floors(self) -> None:
        """The head covers what was acked and not much more; floors are where they were, or further."""
        topic = self._topic
        promised = [
            seq for seq, acked in [*self._acked.items(), *self._lost.items()] if acked.durability in SYNCED_CLASSES
        ]
        acked_head = max(promised, default=0)
        self._require(topic.head >= acked_head, f"head {topic.head} is below the acked seq {acked_head}")
        given = sum(len(w.rows) for w in self._ledger.writes.values() if w.instance == topic.id)
        if Durability.DISK in self._classes:
            most = max([0, *self._acked, *self._lost]) + RESERVE_MAX
        else:
            most = max([given, *self._acked, *self._lost])
        self._require(topic.head <= most, f"head {topic.head} is above {most}")
        earliest, evict_floor = self._ledger.floors.get(topic.id, (1, 1))
        self._require(topic.earliest >= earliest, f"earliest went back from {earliest} to {topic.earliest}")
        self._require(
            topic.evict_floor >= evict_floor, f"the floor went back from {evict_floor} to {topic.evict_floor}"
        )
        self._require(
            topic.in_flight.next_seq == topic.head + 1,
            f"the next seq is {topic.in_flight.next_seq}, the head {topic.head}",
        )
