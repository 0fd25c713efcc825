"""Crashes while messages of the broker are produced, delivered, acked, nacked, moved to the dead letters, and sought.

Judged by notes (`noted`).
"""

from dataclasses import dataclass, field
from typing import Any

import pytest

from driftq.features.broker.protocols import DeliveryKey, Produced
from driftq.system.runtime import Pending
from tests.crash.brokered import KeptByBroker
from tests.crash.noted import SETTINGS, Image, Noting, try_all
from tests.unit.features.broker.rig import BrokerRig, Consumer, message

pytestmark = pytest.mark.crash

PARTITIONS = 2
GROUPS = ("g", "h")

Work = tuple[str, int]
"""A group and an offset."""


@dataclass
class Notes:
    """What producers and consumers of topic `t` know."""

    created: bool = False
    asked: set[str] = field(default_factory=set)
    stored: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Partition and value by offset."""
    acked: set[Work] = field(default_factory=set)
    nacked: dict[Work, int] = field(default_factory=dict)
    """The attempts of the last failure that was answered."""
    unsure: set[Work] = field(default_factory=set)
    """Something about them was asked and not answered yet."""
    mortal: set[str] = field(default_factory=set)
    """Values of messages that become dead letters when they fail."""


class Party(Noting[Notes]):
    """A broker, and people who write down what they were told."""

    def __init__(self, *, shards: int, seed: int | None) -> None:
        super().__init__(Notes())
        self.rig = BrokerRig(settings=SETTINGS, disk=self.disk, clock=self.clock, seed=seed, wal_shards=shards)
        self.consumers: dict[str, Consumer] = {}
        self.held: dict[str, dict[int, int]] = {group: {} for group in GROUPS}
        """Attempts of what each group was given."""

    def create(self) -> None:
        def answered(done: Pending[int]) -> None:
            self.notes.created = done.result() == PARTITIONS

        self.rig.broker.create_topic("t", PARTITIONS).then(answered)

    def produce(self, *values: str, mortal: bool = False) -> None:
        for value in values:
            self._produce(value, mortal=mortal)

    def _produce(self, value: str, *, mortal: bool) -> None:
        notes = self.notes
        notes.asked.add(value)
        if mortal:
            notes.mortal.add(value)

        def answered(done: Pending[Produced]) -> None:
            found = done.result()
            notes.stored[found.offset] = (found.partition, value)

        sent = message(value, key=value, retry=(1, 0, 0) if mortal else None)
        self.rig.broker.produce("t", sent).then(answered)

    def settle(self) -> None:
        """Until nothing is under way; consumers look what they got."""
        self.rig.run_all()
        for group, consumer in self.consumers.items():
            for delivery in consumer.take():
                self.held[group][delivery.offset] = delivery.attempts

    def join(self, group: str) -> None:
        self.consumers[group] = self.rig.consume(group=group, owner=group, lease_ms=1000, credit=0)

    def ack(self, group: str, *offsets: int) -> None:
        for offset in offsets:
            self._settle(group, offset, ack=True)

    def nack(self, group: str, *offsets: int) -> None:
        for offset in offsets:
            self._settle(group, offset, ack=False)

    def _settle(self, group: str, offset: int, *, ack: bool) -> None:
        notes, work = self.notes, (group, offset)
        notes.unsure.add(work)
        attempts = self.held[group][offset]

        def answered(done: Pending[None]) -> None:
            done.result()
            notes.unsure.discard(work)
            if ack:
                notes.acked.add(work)
            else:
                notes.nacked[work] = attempts

        place = DeliveryKey("t", group, notes.stored[offset][0], offset)
        broker = self.rig.broker
        (broker.ack(place, group) if ack else broker.nack(place, group, "no")).then(answered)


def history(party: Party) -> None:
    """Two groups, acks out of order, failures, dead letters, leases that end, checkpoints between."""
    party.create()
    party.settle()
    party.produce("a", "b", "c")
    for group in GROUPS:
        party.join(group)
    party.settle()
    party.produce("d", "e", "f")
    party.ack("g", 1)
    party.nack("h", 0)
    party.settle()
    party.rig.engine_rig.checkpoint()
    party.produce("m", "n", mortal=True)
    party.ack("g", 0, 4)
    party.settle()
    party.nack("g", 6, 5)
    party.nack("h", 7)
    party.ack("h", 2, 0)
    party.settle()
    party.rig.engine_rig.engine.checkpointer.run()
    party.ack("g", 2)
    party.nack("g", 3)
    party.produce("x", "y")
    party.settle()
    party.notes.unsure.update((group, offset) for group in GROUPS for offset in party.held[group])
    party.rig.advance(1300)  # leases end, and what may fail once becomes a dead letter
    party.settle()
    party.rig.engine_rig.checkpoint()
    assert len(party.rig.engine_rig.seqs("@dlq.t")) >= 3, "there are dead letters in this history"


def picture(rig: BrokerRig) -> dict[str, Any]:
    """Everything durable that the broker shows."""
    topic = rig.broker.broker_state.by_name.get("t")
    if topic is None:
        return {}
    return {name: states for name, group in sorted(topic.groups.items()) if (states := group.capture())}


def judge(image: Image[Notes], rig: BrokerRig) -> None:
    """Hold the notes against what a broker shows."""
    notes = image.notes
    topic = rig.broker.broker_state.by_name.get("t")
    if topic is None:
        assert not notes.created, "the topic is gone"
        return
    assert topic.partitions == PARTITIONS
    records = {record["$seq"] - 1: record for record in rig.engine_rig.walk("@t")[0]}
    for offset, (partition, value) in notes.stored.items():
        assert offset in records, f"message {offset} is lost"
        found = records[offset]
        assert (found["$tag"], found["data"]["value"]) == (f"p{partition}", value)
    assert {record["data"]["value"] for record in records.values()} <= notes.asked
    letters = set()
    if "dlq.t" in rig.broker.topics():
        for record in rig.engine_rig.walk("@dlq.t")[0]:
            note = record["data"]["envelope"]["dlq"]
            letters.add((note["group"], note["original_offset"]))
    _judge_groups(notes, rig, records, letters)


def _judge_groups(notes: Notes, rig: BrokerRig, records: dict[int, Any], letters: set[Work]) -> None:
    topic = rig.broker.broker_state.by_name["t"]
    for name in GROUPS:
        group = rig.broker.broker_state.group(topic, name)
        done = set()
        for offset, record in records.items():
            group_partition = group.group_partition(int(record["$tag"][1:]))
            work = (name, offset)
            if offset in group_partition.done:
                done.add(offset)
            elif work in notes.nacked and work not in notes.unsure:
                assert group_partition.retries[offset].attempts >= notes.nacked[work], (
                    f"the failure of {work} is forgotten"
                )
        acked = {offset for who, offset in notes.acked if who == name}
        assert acked <= done, f"{name}: acked messages came back: {acked - done}"
        for offset in done - acked:
            mortal = records[offset]["data"]["value"] in notes.mortal
            assert (name, offset) in (letters if mortal else notes.unsure), f"{name}: nobody has done {offset}"
        assert (
            sum(group_partition.count for group_partition in group.group_partitions.values()) == len(done) == group.done
        )


def probe(_: Image[Notes], rig: BrokerRig) -> None:
    """Everything that is not done comes, and a new message has an offset that none had before."""
    topic = rig.broker.broker_state.by_name.get("t")
    if topic is None:
        return
    records = {record["$seq"] - 1 for record in rig.engine_rig.walk("@t")[0]}
    (made,) = rig.produce("probe")
    assert made.offset > max(records, default=-1)
    rig.advance(0)
    for name in GROUPS:
        group = rig.broker.broker_state.group(topic, name)
        done = {
            offset
            for offset in records
            if (p := topic.index.partition_at(offset)) is not None and offset in group.group_partition(p).done
        }
        consumer = rig.consume(group=name, credit=0, lease_ms=60_000)
        rig.advance(6000)
        came = set(consumer.offsets())
        buried = {
            offset
            for offset in records
            for group_partition in group.group_partitions.values()
            if offset in group_partition.done
        }
        assert came <= (records | {made.offset}) - done
        assert came | buried >= records | {made.offset}, "a message never came"


class Kept(KeptByBroker[Notes]):
    """What the broker has to keep."""

    judge = staticmethod(judge)
    probe = staticmethod(probe)
    picture = staticmethod(picture)


@pytest.mark.parametrize(("shards", "seed"), [(1, None), (2, None), (1, 1), (2, 2)])
def test_a_crash_at_any_call_of_the_broker_keeps_its_promises(shards: int, seed: int | None) -> None:
    """proves: G-GROUP-1, G-GROUP-2; inv1: 52, 53, 54, 72, 73"""
    party = Party(shards=shards, seed=seed)
    history(party)
    try_all(party.images, Kept(), seed)
