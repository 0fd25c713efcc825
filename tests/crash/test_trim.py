"""Crashes while retention trims topics of the broker: what is open never goes, what went stays gone, and counts hold.

Judged by notes (`noted`).
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from driftq.features.broker.protocols import DeliveryKey, Produced
from driftq.system.runtime import Pending
from tests.crash.brokered import KeptByBroker
from tests.crash.noted import SETTINGS, Image, Noting, try_all
from tests.unit.features.broker.rig import BrokerRig, Consumer, message

pytestmark = pytest.mark.crash

AGE_MS = 1000
PARTITIONS = 2
GROUPS = ("g", "h")


@dataclass
class Notes:
    """What producers, consumers and onlookers know."""

    stored: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Partition and value by offset."""
    asked: set[tuple[str, int]] = field(default_factory=set)
    """Acks that were sent."""
    acked: set[tuple[str, int]] = field(default_factory=set)
    """And answered."""
    known: set[str] = field(default_factory=set)
    """Groups that have done something."""
    start: int = 0
    """Where the topic was seen to begin."""


class Party(Noting[Notes]):
    """A broker with retention, and people who write down what they were told."""

    def __init__(self, *, shards: int, seed: int | None) -> None:
        super().__init__(Notes())
        self.rig = BrokerRig(
            settings=SETTINGS, disk=self.disk, clock=self.clock, seed=seed, wal_shards=shards, v1_retention_ms=AGE_MS
        )
        self.consumers: dict[str, Consumer] = {}
        self.rig.create("t", PARTITIONS)

    def produce(self, *values: str) -> None:
        for value in values:

            def answered(done: Pending[Produced], value: str = value) -> None:
                found = done.result()
                self.notes.stored[found.offset] = (found.partition, value)

            self.rig.broker.produce("t", message(value, key=value)).then(answered)
        self.rig.run_all()

    def join(self) -> None:
        for group in GROUPS:
            self.consumers[group] = self.rig.consume(group=group, owner=group, lease_ms=1 << 30, credit=0)
        self.rig.run_all()

    def ack(self, group: str, *offsets: int) -> None:
        notes = self.notes
        for offset in offsets:
            notes.asked.add((group, offset))

            def answered(done: Pending[None], work: tuple[str, int] = (group, offset)) -> None:
                done.result()
                notes.acked.add(work)
                notes.known.add(work[0])

            place = DeliveryKey("t", group, notes.stored[offset][0], offset)
            self.rig.broker.ack(place, group).then(answered)
        self.rig.run_all()

    def age(self, ms: int) -> None:
        """Time passes, and the look that is due is taken."""
        for _ in range(ms // 100):
            self.rig.advance(100)
            self.notes.start = self.rig.broker.broker_state.by_name["t"].index.start


def history(party: Party) -> None:
    """Two groups, acks out of order, three trims, a checkpoint between them and one after."""
    party.produce("a", "b", "c", "d", "e")
    party.join()
    for group in GROUPS:
        party.ack(group, 1, 0, 3)
    party.age(AGE_MS + 200)
    assert party.notes.start == 2
    party.produce("f", "g", "h", "i")
    party.rig.engine_rig.checkpoint()
    party.ack("g", 2, 4, 5, 8)
    party.ack("h", 2, 4, 6, 7)
    party.age(AGE_MS // 2)
    party.ack("h", 5, 8)
    party.age(AGE_MS + 200)
    assert party.notes.start == 2, "a block that is not written to any more goes whole"
    party.ack("g", 6, 7)
    party.produce("k", "l", "m")
    party.age(200)
    assert party.notes.start == 9
    for group in GROUPS:
        party.ack(group, 9, 10)
    party.age(AGE_MS + 200)
    assert party.notes.start == 11
    party.produce("n")
    party.rig.engine_rig.checkpoint()
    party.rig.run_all()


def judge(image: Image[Notes], rig: BrokerRig) -> None:
    """Hold the notes against what a broker shows."""
    notes = image.notes
    topic = rig.broker.broker_state.by_name.get("t")
    if topic is None:
        assert not notes.stored, "the topic is gone"
        return
    index = topic.index
    assert index.start >= notes.start, "what went is back"
    records = {record["$seq"] - 1: record for record in rig.engine_rig.walk("@t")[0]}
    assert min(records, default=index.start) >= index.start, "a record is below the start"
    assert {offset for offset in notes.stored if offset >= index.start} <= records.keys(), "a message is lost"
    for offset in range(index.start):
        for name in notes.known:
            assert (name, offset) in notes.asked, f"{offset} is gone, and {name} has not done it"
    for partition, part in enumerate(index.parts):
        mine = {offset: record for offset, record in records.items() if record["$tag"] == f"p{partition}"}
        sizes = [len(record["data"]["key"] + record["data"]["value"]) for record in mine.values()]
        assert (part.count, part.size) == (len(mine), sum(sizes)), "totals do not hold"
        for name, group in topic.groups.items():
            group_partition = group.group_partition(partition)
            done = {offset for offset in mine if offset in group_partition.done}
            assert {offset for who, offset in notes.acked if who == name and offset in mine} <= done
            assert (group_partition.count, group_partition.lag) == (len(done), len(mine) - len(done)), (
                f"{name} counts what is not there"
            )


def probe(image: Image[Notes], rig: BrokerRig) -> None:
    """Groups get what they have not done, a new one gets all that is left, and it goes on being trimmed."""
    topic = rig.broker.broker_state.by_name.get("t")
    if topic is None:
        return
    left = {record["$seq"] - 1 for record in rig.engine_rig.walk("@t")[0]}
    for name in (*sorted(topic.groups), "new"):
        acked = {offset for who, offset in image.notes.asked if who == name}
        came = set(rig.consume(group=name, credit=0, lease_ms=1 << 30).offsets())
        assert left - acked <= came <= left, f"{name} is not given what is left"
        for offset in came:
            partition = topic.index.partition_at(offset)
            assert partition is not None
            rig.run(rig.broker.ack(DeliveryKey("t", name, partition, offset), "a"))
    rig.advance(3 * AGE_MS)
    assert topic.index.start == topic.index.head
    assert [part.count for part in topic.index.parts] == [0] * PARTITIONS


class Kept(KeptByBroker[Notes]):
    """What retention has to keep. A broker that looks at once would trim before it is judged: its clock stands."""

    limits: ClassVar[dict[str, Any]] = {"v1_retention_ms": AGE_MS}
    judge = staticmethod(judge)
    probe = staticmethod(probe)

    @staticmethod
    def picture(rig: BrokerRig) -> object:
        return rig.broker.broker_state.capture()


@pytest.mark.parametrize(("shards", "seed"), [(1, None), (2, None), (1, 1)])
def test_a_crash_at_any_call_of_a_trim_keeps_what_is_open_and_what_is_counted(shards: int, seed: int | None) -> None:
    """proves: G-GROUP-4, G-GROUP-5"""
    party = Party(shards=shards, seed=seed)
    history(party)
    try_all(party.images, Kept(), seed)
