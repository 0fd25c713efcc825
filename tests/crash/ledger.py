"""What a run has asked for and what it has been told: the only witness against which a recovered server is judged.

A `Ledger` is copied at every disk call, so nothing in it is changed in place but its own dicts. Every record's data
names the write and the row it comes from, so a record that is read back tells who wrote it.
"""

from collections.abc import Iterator
from typing import NamedTuple

from driftq.model.topic_config import Durability, TopicConfig
from tests.crash.reading import Record

SYNCED_CLASSES = (Durability.DISK, Durability.FSYNC)


class Row(NamedTuple):
    """One record as it was handed in."""

    data: bytes
    tag: bytes | None
    node: bytes | None
    meta: bytes | None


def data_of(write: int, row: int, padding: int = 0) -> bytes:
    """The payload of a row: a JSON string that names it."""
    return b'"%d.%d.%b"' % (write, row, b"x" * padding)


def origin(data: bytes) -> tuple[int, int]:
    """The write and the row of a payload."""
    write, row, _ = data.strip(b'"').split(b".")
    return int(write), int(row)


class Write(NamedTuple):
    """One batch of one writer; `first_seq` and `ts` once it is acked."""

    instance: int
    rows: tuple[Row, ...]
    key: str | None
    durability: Durability
    first_seq: int = 0
    ts: int = 0


class Delete(NamedTuple):
    """One delete of records; `promised` once it is acked by a class that syncs deletes."""

    instance: int
    bound: int
    before: int | None
    tag: bytes | None
    prefix: bytes | None
    seqs: frozenset[int] | None
    promised: bool = False

    def selects(self, instance: int, seq: int, tag: bytes | None) -> bool:
        """Is the record with this seq and tag one of those it takes?"""
        if instance != self.instance or seq >= self.bound or (self.before is not None and seq >= self.before):
            return False
        if self.seqs is not None:
            return seq in self.seqs
        if self.tag is not None:
            return tag == self.tag
        if self.prefix is not None:
            return tag is not None and tag.startswith(self.prefix)
        return True


class TopicOp(NamedTuple):
    """Create, update (a config) or delete (None) of the topic of a name."""

    instance: int
    config: TopicConfig | None
    acked: bool = False


class Acked(NamedTuple):
    """A record whose write was acked, or one that a recovered server has shown."""

    record: Record
    durability: Durability
    write: int


class Bounds:
    """How far retention could have gone by the next quiet moment; filled in when that moment comes."""

    def __init__(self, cap_lost: dict[int, int] | None = None) -> None:
        self.cap_lost = dict(cap_lost or {})


class Ledger:
    """Everything that was asked and answered so far."""

    def __init__(self) -> None:
        self.names: dict[str, tuple[TopicOp, ...]] = {}
        self.writes: dict[int, Write] = {}
        self.acked: dict[tuple[int, int], Acked] = {}
        self.deletes: dict[int, Delete] = {}
        self.floors: dict[int, tuple[int, int]] = {}
        """Per instance the highest `earliest` and `evict_floor` a reader was shown and a crash may not take back."""
        self.synced: dict[int, int] = {}
        """Per instance the highest `synced_seq` that was told."""
        self.lost: dict[tuple[int, int], Acked] = {}
        """Acked records that a recovered server has shown to be lost, as their class allows: they never come back."""
        self.failed: dict[int, BaseException] = {}
        """Writes that were answered with an error."""
        self.bounds = Bounds()

    def copy(self) -> "Ledger":
        """The same, from here on on its own; the next quiet moment is still a common one."""
        other = Ledger()
        other.names = dict(self.names)
        other.writes = dict(self.writes)
        other.acked = dict(self.acked)
        other.deletes = dict(self.deletes)
        other.floors = dict(self.floors)
        other.synced = dict(self.synced)
        other.lost = dict(self.lost)
        other.failed = dict(self.failed)
        other.bounds = self.bounds
        return other

    # Topics

    def topic_asked(self, name: str, instance: int, config: TopicConfig | None) -> int:
        """A create, update or delete is submitted. Returns its place among those of the name."""
        before = self.names.get(name, ())
        self.names[name] = (*before, TopicOp(instance, config))
        return len(before)

    def topic_acked(self, name: str, place: int) -> None:
        """It is answered."""
        ops = list(self.names[name])
        ops[place] = ops[place]._replace(acked=True)
        self.names[name] = tuple(ops)

    def allowed(self, name: str) -> list[TopicOp]:
        """What may be found under a name: the state of the last acked operation, or of any submitted behind it."""
        ops = (TopicOp(0, None, acked=True), *self.names.get(name, ()))
        last = max(place for place, op in enumerate(ops) if op.acked)
        return [*ops[last:]]

    def configs(self, instance: int) -> Iterator[TopicConfig]:
        """Every config that an instance may have had."""
        for ops in self.names.values():
            for op in ops:
                if op.instance == instance and op.config is not None:
                    yield op.config

    # Records

    def write_asked(self, write: Write) -> int:
        """A write is submitted. Returns its number."""
        self.writes[len(self.writes)] = write
        return len(self.writes) - 1

    def write_acked(self, number: int, first_seq: int, ts: int, durability: Durability) -> None:
        """It is answered."""
        write = self.writes[number]._replace(first_seq=first_seq, ts=ts, durability=durability)
        self.writes[number] = write
        for seq, row in enumerate(write.rows, first_seq):
            record = Record(seq, ts, row.data, row.tag, row.node, row.meta)
            self.acked[write.instance, seq] = Acked(record, durability, number)

    def shown(self, instance: int, records: list[Record]) -> None:
        """A recovered server has shown its records: they are as good as acked by `fsync`, and the others are gone."""
        for record in records:
            self.acked[instance, record.seq] = Acked(record, Durability.FSYNC, origin(record.data)[0])
        there = {record.seq for record in records}
        for key in [key for key in self.acked if key[0] == instance and key[1] not in there]:
            self.lost[key] = self.acked.pop(key)

    def delete_asked(self, delete: Delete) -> int:
        """A delete is submitted. Returns its number."""
        self.deletes[len(self.deletes)] = delete
        return len(self.deletes) - 1

    def delete_acked(self, number: int, *, promised: bool) -> None:
        """It is answered."""
        self.deletes[number] = self.deletes[number]._replace(promised=promised)

    def may_be_deleted(self, instance: int, seq: int, tag: bytes | None) -> bool:
        """Did anybody ask for this record to go?"""
        return any(delete.selects(instance, seq, tag) for delete in self.deletes.values())

    def is_deleted(self, instance: int, seq: int, tag: bytes | None) -> bool:
        """Was somebody told that this record is gone for good?"""
        return any(d.promised and d.selects(instance, seq, tag) for d in self.deletes.values())

    def floors_shown(self, instance: int, earliest: int, evict_floor: int) -> None:
        """A reader was shown these floors."""
        before = self.floors.get(instance, (1, 1))
        self.floors[instance] = (max(before[0], earliest), max(before[1], evict_floor))

    def synced_told(self, instance: int, seq: int) -> None:
        """Somebody was told that seqs up to here are on stable storage."""
        self.synced[instance] = max(self.synced.get(instance, 0), seq)
