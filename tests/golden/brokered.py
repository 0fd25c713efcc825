"""A data directory of the broker: progress, failures, dead letters, outcomes, runs; in the checkpoint and behind it."""

from typing import Any

from msgspec import structs, to_builtins

from driftq.config import Settings
from driftq.engine.state.durable_feature import DurableState
from driftq.features.broker.protocols import KeyOwner
from driftq.features.broker.redrive_topics import BrokerRedriveTopics
from driftq.features.broker.retention import Retention
from driftq.features.broker.run_index import FoundRun, RunIndex
from driftq.features.broker.state.broker_frames import GroupKind, GroupPartitionState, RetryBody, encode
from driftq.system.runtime import run
from driftq.testing import SimDisk
from driftq.testing.engine_rig import SMALL
from tests.unit.features.broker.rig import RegisteredRig

FORMAT = 2
SETTINGS: Settings = structs.replace(SMALL, wal_file_bytes=8 << 10)


class BrokeredRig(RegisteredRig):
    """A broker with its registry and its index of runs."""

    def __init__(self, disk: SimDisk) -> None:
        super().__init__(settings=SETTINGS, disk=disk)

    def _features(self) -> tuple[DurableState, ...]:
        registry, broker = super()._features()
        self.runs = RunIndex(100)
        self.broker.broker_state.listeners.append(self.runs.heard)
        self.broker.broker_state.enders.append(self.runs.ended)
        return registry, self.runs, broker


def _round(rig: BrokeredRig, name: str) -> None:
    """Messages, acks out of order, a failure, a dead letter, outcomes."""
    rig.produce(*(f"{name}{n}" for n in range(4)), key="größe", run_id=name, step_id="s")
    rig.produce(f"{name} keyed", idempotency_key=name, tenant_id="ta")
    rig.produce(f"{name} dies", retry=(1, 0, 0), run_id=name, step_id="last")
    consumer = rig.consume(credit=0, lease_ms=60_000)
    got = {found.message.value: found for found in consumer.take()}
    consumer.ack(got[f"{name}1"].offset, got[f"{name}1"].partition)
    consumer.ack(got[f"{name}0"].offset, got[f"{name}0"].partition)
    consumer.nack(got[f"{name}2"].offset, "boom", got[f"{name}2"].partition)
    consumer.nack(got[f"{name} dies"].offset, "fatal", got[f"{name} dies"].partition)
    consumer.ack(got[f"{name} keyed"].offset, got[f"{name} keyed"].partition)
    consumer.close()
    for key, committed in (("done", True), ("failed", False)):
        scope = KeyOwner("", "t", "g", f"{name} {key}")
        rig.registry.begin_key(scope, "a", 30_000)
        if committed:
            rig.run(rig.registry.commit_key(scope, "a", b"\x00result"))
        else:
            rig.run(rig.registry.fail_key(scope, "a", "no"))


def _again(rig: BrokeredRig) -> None:
    """Acks that share a frame, of messages that failed before among them; and a message that is not tried again."""
    rig.advance(70_000)
    consumer = rig.consume(credit=0, lease_ms=60_000)
    got = consumer.take()
    for found in got[:3]:
        rig.broker.ack(consumer.place(found.offset, found.partition), "a")
    rig.run_all()
    consumer.close()
    doomed = RetryBody("g", got[-1].partition, got[-1].offset, 1, "not mine", 0, 0, doomed=True)
    rig.run(rig.broker.broker_state.log(rig.broker.broker_state.by_name["t"], GroupKind.RETRY, encode(doomed)))


def _trim(rig: BrokeredRig) -> None:
    """Retention takes what nobody reads, before a checkpoint and behind it."""
    engine, runtime, broker_state = rig.engine_rig.engine, rig.engine_rig.runtime, rig.broker.broker_state
    retention = Retention(engine, runtime, broker_state, 1000)
    rig.create("aged", 2)
    for life in range(2):
        rig.produce("first", "second", topic="aged", partition_override=life)
        rig.advance(2000)
        rig.run(run(retention.sweep()))
        rig.produce("stays", topic="aged")
        if not life:
            rig.engine_rig.checkpoint()


def build() -> BrokeredRig:
    """The run; it ends without a word."""
    rig = BrokeredRig(SimDisk(roots=("/data", "/cold")))
    rig.create("t", 3)
    rig.create("empty", 2)
    _round(rig, "before")
    rig.engine_rig.checkpoint()
    _round(rig, "after")
    letters = BrokerRedriveTopics(rig.engine_rig.engine, rig.broker.broker_state, rig.broker.producer)
    page, _ = rig.run(letters.read("dlq.t", 0, 1))
    rig.run(letters.retire("dlq.t", page[0]))
    rig.run(rig.broker.seek("t", "sought", {0: 3, 1: 5}))
    _again(rig)
    _trim(rig)
    rig.engine_rig.runtime.advance(20)
    return rig


def picture(rig: BrokeredRig) -> dict[str, Any]:
    """How groups, keys and runs stand."""
    topics = rig.broker.broker_state.by_name.values()
    return {
        "topics": {topic.name: topic.partitions for topic in topics},
        "lanes": {
            f"{topic.name} {name}": [_group_partition(state) for state in group.capture()]
            for topic in topics
            for name, group in topic.groups.items()
        },
        "retired": {topic.name: [sorted(part.retired) for part in topic.index.parts] for topic in topics},
        "produced": to_builtins(rig.registry.produced.capture()),
        "outcomes": to_builtins(rig.registry.consumed.capture()),
        "runs": {name: _run(rig.runs.find(name)) for name in ("before", "after")},
        "starts": {topic.name: topic.index.start for topic in topics},
        "totals": {topic.name: [(part.count, part.size) for part in topic.index.parts] for topic in topics},
        "doomed": {
            f"{topic.name} {name}": sorted(offset for offset, fact in group_partition.retries.items() if fact.doomed)
            for topic in topics
            for name, group in topic.groups.items()
            for group_partition in group.group_partitions.values()
        },
        "attempts": {
            name: [trace.attempts for _, trace in found.steps]
            for name in ("before", "after")
            if (found := rig.runs.find(name)) is not None
        },
    }


def _group_partition(state: GroupPartitionState) -> Any:
    """What every version has of a lane."""
    told = to_builtins(state, str_keys=True)
    told[-1] = {offset: fact[:3] for offset, fact in told[-1].items()}
    return told


def _run(found: FoundRun | None) -> Any:
    """What every version has of a run."""
    return (
        None
        if found is None
        else to_builtins(([(step, trace.letters) for step, trace in found.steps], found.truncated))
    )
