"""The broker against a plain model: whatever is produced, delivered, acked, nacked, given back and crashed, nothing
that was stored is lost, nothing that was acked comes back, what the broker counts is what there is, and retention takes
nothing that some group has not done.
"""

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from driftq.config import Settings
from driftq.errors import InvalidRequestError, NotOwnerError, PreconditionError
from driftq.features.broker.protocols import DeliveryKey
from driftq.features.broker.state.group_partition import State
from driftq.testing import CrashMode
from tests.property.histories import HISTORIES
from tests.unit.features.broker.rig import BrokerRig, Consumer

spices = st.integers(0, 1 << 20)
GROUPS = ("g", "h")
OWNERS = ("a", "b")
IN_FLIGHT = 4
LIMIT = 2
"""`max_attempts` of the messages that have one."""


class World:
    """A broker, and what must be true of it."""

    def __init__(self, spice: int) -> None:
        rng = random.Random(spice)
        self.partitions = rng.choice((1, 1, 2, 3))
        small = Settings(
            data_dir="/data",
            wal_file_bytes=rng.choice((8 << 10, 16 << 10)),
            segment_max_events=rng.choice((4, 16, 300)),
            cache_bytes=rng.choice((1, 4 << 10, 1 << 20)),
            checkpoint_wal_bytes=rng.choice((4 << 10, 64 << 20)),
        )
        self.rig = BrokerRig(
            settings=small,
            seed=rng.choice((None, spice)),
            in_flight_max=IN_FLIGHT,
            v1_retention_ms=rng.choice((0, 2000, 8000)),
        )
        self.start = 0
        """Retention has taken what is below."""
        self.rig.create("t", self.partitions)
        self.stored: list[tuple[int, str, bool]] = []
        """Partition, value, and whether it may become a dead letter, by offset."""
        self.done: dict[str, set[int]] = {group: set() for group in GROUPS}
        self.consumers: list[Consumer] = []
        self.owners: dict[tuple[str, int], str] = {}
        """Who received the last delivery, in this run."""
        self.attempts: Counter[tuple[str, int]] = Counter()
        """How many failures must have been recorded at least."""

    def produce(self, rng: random.Random) -> None:
        partition, mortal = rng.randrange(self.partitions), rng.random() < 0.2
        value = f"m{len(self.stored)}" + "x" * rng.choice((0, 1, 300))
        retry = (LIMIT, 0, 0) if mortal else None
        (found,) = self.rig.produce(value, topic="t", partition_override=partition, retry=retry)
        assert (found.partition, found.offset) == (partition, len(self.stored))
        self.stored.append((partition, value, mortal))

    def join(self, rng: random.Random) -> None:
        if len(self.consumers) < 4:
            lease, credit = rng.choice((100, 2000)), rng.choice((0, 1, 8))
            consumer = self.rig.consume(
                group=rng.choice(GROUPS), owner=rng.choice(OWNERS), lease_ms=lease, credit=credit
            )
            self.consumers.append(consumer)

    def leave(self, rng: random.Random) -> None:
        if self.consumers:
            self.look()
            self.consumers.pop(rng.randrange(len(self.consumers))).close()

    def look(self) -> None:
        """What has come must be true; and be something that may come."""
        self.rig.run_all()
        came = [(delivery, consumer) for consumer in self.consumers for delivery in consumer.take()]
        for delivery, consumer in sorted(came, key=lambda one: one[0].attempts):
            partition, value, mortal = self.stored[delivery.offset]
            assert (delivery.partition, delivery.message.value) == (partition, value)
            assert delivery.offset not in self.done[consumer.group], "what was acked came back"
            assert not mortal or delivery.attempts <= LIMIT
            assert delivery.attempts > self.attempts[consumer.group, delivery.offset]
            self.owners[consumer.group, delivery.offset] = consumer.owner

    def settle(self, rng: random.Random, *, ack: bool) -> None:
        """The last owner of a message, or somebody else, says what became of it."""
        self.look()
        if not self.owners:
            return
        group, offset = rng.choice(sorted(self.owners))
        owner = self.owners[group, offset] if rng.random() < 0.9 else "stranger"
        place = DeliveryKey("t", group, self.stored[offset][0], offset)
        broker = self.rig.broker
        try:
            self.rig.run(broker.ack(place, owner) if ack else broker.nack(place, owner, "no"))
        except NotOwnerError:
            assert owner == "stranger" or self._moved(group, offset, owner)
            return
        except InvalidRequestError:
            assert not ack or offset not in self.done[group]
            assert offset in self.done[group] or self._dead(group, offset)
            return
        if ack:
            self.done[group].add(offset)
        elif owner != "stranger":
            self.attempts[group, offset] = max(self.attempts[group, offset], 1)

    def release(self, rng: random.Random) -> None:
        """The last owner of a message, or somebody else, gives it back."""
        self.look()
        if not self.owners:
            return
        group, offset = rng.choice(sorted(self.owners))
        owner = self.owners[group, offset] if rng.random() < 0.9 else "stranger"
        partition = self.stored[offset][0]
        entry = self.rig.broker.broker_state.by_name["t"].groups[group].group_partitions[partition].open.get(offset)
        leased = entry is not None and entry.state is State.LEASED
        try:
            self.rig.run(self.rig.broker.release(DeliveryKey("t", group, partition, offset), owner))
        except NotOwnerError:
            assert owner == "stranger" or self._moved(group, offset, owner)
        except InvalidRequestError:
            assert offset in self.done[group] or self._dead(group, offset)
        else:
            if leased:
                del self.owners[group, offset]

    def _moved(self, group: str, offset: int, owner: str) -> bool:
        """Has it been given to somebody else while nobody looked?"""
        self.look()
        return self.owners[group, offset] != owner

    def _dead(self, group: str, offset: int) -> bool:
        group_partition = (
            self.rig.broker.broker_state.by_name["t"].groups[group].group_partitions[self.stored[offset][0]]
        )
        return self.stored[offset][2] and offset in group_partition.done

    def seek(self, rng: random.Random) -> None:
        """A group starts again from somewhere."""
        self.look()
        group, offset = rng.choice(GROUPS), rng.randrange(len(self.stored) + 2)
        try:
            self.rig.run(self.rig.broker.seek("t", group, dict.fromkeys(range(self.partitions), offset), force=True))
        except PreconditionError:
            raise AssertionError("it was forced") from None
        self.done[group] = set(range(max(self.start, min(offset, len(self.stored)))))
        for known in (self.owners, self.attempts):
            for key in [key for key in known if key[0] == group]:
                del known[key]

    def die(self, rng: random.Random) -> None:
        self.look()
        how = rng.random()
        if how < 0.3:
            self.rig.restart()
        else:
            self.rig.crash(rng.choice(list(CrashMode)), rng.randrange(100))
        self.consumers.clear()
        self.owners.clear()

    def check(self) -> None:
        """What the broker counts is what there is."""
        self.look()
        self._trims()
        topic = self.rig.broker.broker_state.by_name["t"]
        letters = self._letters()
        for name, group in topic.groups.items():
            for partition in range(self.partitions):
                group_partition = group.group_partition(partition)
                mine = [offset for offset in range(self.start, len(self.stored)) if self.stored[offset][0] == partition]
                done = {offset for offset in mine if offset in group_partition.done}
                acked = self.done[name].intersection(mine)
                assert acked <= done, "what was acked is forgotten"
                for offset in done - acked:
                    assert self.stored[offset][2], "what nobody acked is done"
                    assert (name, offset) in letters, "a dead letter is lost"
                    self.done[name].add(offset)
                assert (group_partition.count, group_partition.size) == (
                    len(done),
                    sum(len(self.stored[o][1]) for o in done),
                )
                assert group_partition.lag == len(mine) - len(done)
                assert len(group_partition.open) <= IN_FLIGHT
                assert len(group_partition.done.starts) <= IN_FLIGHT + 1
        for consumer in self.consumers:
            assert consumer.stream.held >= 0
            assert not consumer.stream.credit or consumer.stream.held <= consumer.stream.credit

    def _trims(self) -> None:
        """What retention has taken was done for every group."""
        topic = self.rig.broker.broker_state.by_name["t"]
        start = topic.index.start
        assert start >= self.start, "what went is back"
        for offset in range(self.start, start):
            for group in topic.groups.values():
                group_partition = group.group_partitions.get(self.stored[offset][0])
                assert group_partition is not None, "what a group has not begun is gone"
                assert offset in group_partition.done, "what a group has not done is gone"
        self.start = start
        for done in self.done.values():
            done.update(range(start))

    def _letters(self) -> set[tuple[str, int]]:
        if "dlq.t" not in self.rig.broker.topics():
            return set()
        records = self.rig.engine_rig.walk("@dlq.t")[0]
        notes = [record["data"]["envelope"]["dlq"] for record in records]
        return {(note["group"], note["original_offset"]) for note in notes}

    def drain(self) -> None:
        """In the end everything that is not done comes, to every group, and in the order of its first deliveries."""
        self.check()
        for consumer in self.consumers:
            consumer.close()
        self.consumers.clear()
        for group in GROUPS:
            consumer = self.rig.consume(group=group, owner="last", lease_ms=60_000, credit=0)
            seen: list[int] = []
            for _ in range(300):
                for delivery in consumer.take():
                    assert delivery.offset not in self.done[group]
                    if delivery.attempts == 1:
                        seen.append(delivery.offset)
                    consumer.ack(delivery.offset, delivery.partition)
                    self.done[group].add(delivery.offset)
                self.rig.advance(250)
                self.check()
                if len(self.done[group]) == len(self.stored):
                    break
            assert self.done[group] == set(range(len(self.stored))), "a message never came"
            for partition in range(self.partitions):
                first = [offset for offset in seen if self.stored[offset][0] == partition]
                assert first == sorted(first)
            consumer.close()


class BrokerModel(RuleBasedStateMachine):
    """Each rule is something that happens."""

    world: World

    @initialize(spice=spices)
    def start(self, spice: int) -> None:
        """One topic."""
        self.world = World(spice)

    @rule(spice=spices, count=st.integers(1, 5))
    def produce(self, spice: int, count: int) -> None:
        """Some messages."""
        rng = random.Random(spice)
        for _ in range(count):
            self.world.produce(rng)

    @rule(spice=spices)
    def join(self, spice: int) -> None:
        """A stream."""
        self.world.join(random.Random(spice))

    @rule(spice=spices)
    def leave(self, spice: int) -> None:
        """A stream is gone."""
        self.world.leave(random.Random(spice))

    @rule(spice=spices)
    def ack(self, spice: int) -> None:
        """An ack."""
        self.world.settle(random.Random(spice), ack=True)

    @rule(spice=spices)
    def nack(self, spice: int) -> None:
        """A nack."""
        self.world.settle(random.Random(spice), ack=False)

    @rule(spice=spices)
    def release(self, spice: int) -> None:
        """A release."""
        self.world.release(random.Random(spice))

    @rule(ms=st.sampled_from((1, 99, 251, 1000, 5000)))
    def wait(self, ms: int) -> None:
        """Leases end."""
        self.world.rig.advance(ms)
        self.world.check()

    @rule(spice=spices)
    def seek(self, spice: int) -> None:
        """A group is moved."""
        self.world.seek(random.Random(spice))
        self.world.check()

    @rule()
    def checkpoint(self) -> None:
        """A checkpoint."""
        self.world.rig.engine_rig.checkpoint()

    @rule(spice=spices)
    def die(self, spice: int) -> None:
        """The end of a run."""
        self.world.die(random.Random(spice))
        self.world.check()

    def teardown(self) -> None:
        """Everything comes in the end."""
        if hasattr(self, "world"):
            self.world.drain()


BrokerModel.TestCase.settings = settings(
    max_examples=HISTORIES, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestBrokerModel = BrokerModel.TestCase


@pytest.mark.parametrize("seed", range(6))
def test_a_long_walk_loses_nothing(seed: int) -> None:
    """inv1: 34, 52, 53, 54, 55"""
    rng = random.Random(seed)
    world = World(seed)
    for _ in range(150):
        step = rng.random()
        if step < 0.25:
            world.produce(rng)
        elif step < 0.35:
            world.join(rng)
        elif step < 0.4:
            world.leave(rng)
        elif step < 0.65:
            world.settle(rng, ack=True)
        elif step < 0.75:
            world.settle(rng, ack=False)
        elif step < 0.82:
            world.release(rng)
        elif step < 0.9:
            world.rig.advance(rng.choice((1, 99, 251, 1000, 5000)))
        elif step < 0.92:
            world.seek(rng)
        elif step < 0.96:
            world.rig.engine_rig.checkpoint()
        else:
            world.die(rng)
        world.check()
    world.drain()
