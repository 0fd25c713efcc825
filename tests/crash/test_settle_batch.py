"""Crashes while batches of acks, nacks and commits of keys are logged (http-v1 §22): a prefix of each is in force.

Acks of one batch are one frame, so that all of them are in force or none. Nacks, and outcomes of keys, are one frame
each, in the order of the entries and in one write: after a crash the first of them are in force, up to some entry, and
all where the batch was answered. Judged by notes (`noted`).
"""

import random
from base64 import b64encode
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.json import decode

from driftq.features.broker.protocols import KeyOwner
from driftq.http.reply import Reply
from driftq.system.runtime import Pending
from driftq.testing import CrashMode, ManualClock, ServerRig, SimDisk
from tests.crash.noted import SETTINGS, Image, Noting, try_all

pytestmark = pytest.mark.crash

ENTRIES = 12
ACKED = range(ENTRIES)
NACKED = range(ENTRIES, 2 * ENTRIES)
RELEASED = range(2 * ENTRIES, 3 * ENTRIES)
RESULT = b"done" * 100
KEYS = [f"k{number}" for number in range(ENTRIES)]
HELD = {"topic": "t", "group": "g", "owner": "a"}


@dataclass
class Notes:
    """Which batches were sent, and which were answered."""

    stored: bool = False
    sent: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)


class Party(Noting[Notes]):
    """A server, and a worker that writes down what it was told."""

    def __init__(self, seed: int | None) -> None:
        super().__init__(Notes())
        self.rig = ServerRig(SETTINGS, disk=self.disk, clock=self.clock, seed=seed)

    def batch(self, call: str, entries: list[Any], **shared: Any) -> None:
        """Send a batch; all its entries succeed."""
        notes = self.notes
        notes.sent.add(call)

        def answered(reply: Reply) -> None:
            results = decode(reply.body)["results"]
            assert len(results) == len(entries)
            assert {one["code"] for one in results} <= {200, 204}, results
            notes.answered.add(call)

        answer = self.rig.send("POST", f"/v1/{call}/batch", HELD | shared | {"entries": entries})
        if isinstance(answer, Pending):
            answer.then(lambda done: answered(done.result()))
        else:
            assert isinstance(answer, Reply)
            answered(answer)

    def places(self, offsets: range) -> list[dict[str, int]]:
        return [{"partition": 0, "offset": offset} for offset in offsets]


def history(party: Party) -> None:
    """Every kind of batch, some of them on their way at the same time."""
    rig = party.rig
    assert rig.ask("POST", "/v1/topics", {"name": "t"}).status == 201
    messages = [{"value": str(number)} for number in range(3 * ENTRIES)]
    rig.ok("POST", "/v1/produce/batch", {"topic": "t", "messages": messages})
    party.notes.stored = True
    sink = rig.stream("/v1/consume?topic=t&group=g&owner=a&lease_ms=60000&max_in_flight=1000")[1]
    rig.run()
    assert len(sink.taken().splitlines()) == 3 * ENTRIES
    keys = [{"idempotency_key": key} for key in KEYS]
    party.batch("idempotency/begin", keys)
    party.batch("nack", [place | {"delay_ms": 3_600_000, "reason": "no" * 200} for place in party.places(NACKED)])
    rig.run()
    party.batch("idempotency/commit", [key | {"result": b64encode(RESULT).decode()} for key in keys])
    party.batch("release", party.places(RELEASED))
    rig.run()
    rig.server.engine.checkpointer.run()
    rig.run()
    party.batch("ack", party.places(ACKED))
    rig.run()
    assert party.notes.answered == party.notes.sent


class Kept:
    """What batches have to keep."""

    def __init__(self) -> None:
        self.counts: set[tuple[str, int]] = set()
        """How many entries of a batch were in force, over all crashes."""

    def recovered(self, image: Image[Notes], disk: SimDisk, _: random.Random) -> ServerRig:
        """A server on a disk that a crash left."""
        return ServerRig(SETTINGS, disk=disk, clock=ManualClock(image.wall_ms))

    def disk_of(self, rig: ServerRig) -> SimDisk:
        """The disk it works on."""
        return rig.disk

    def picture(self, rig: ServerRig) -> object:
        """What is in force of each batch."""
        return _in_force(rig)

    def judge(self, image: Image[Notes], rig: ServerRig) -> None:
        """A prefix of each batch is in force: of acks all or none, of an answered batch all, of one not sent none."""
        for call, found in _in_force(rig).items():
            count = found.index(False) if False in found else len(found)
            self.counts.add((call, count))
            assert not any(found[count:]), f"{call}: entry {count} is not in force, and a later one is"
            if call == "ack":
                assert count in (0, ENTRIES), "some acks of a batch are in force"
            if call in image.notes.answered:
                assert count == ENTRIES, f"{call} was answered, and {ENTRIES - count} entries are not in force"
            if call not in image.notes.sent:
                assert count == 0, f"{call} was never sent"

    def probe(self, image: Image[Notes], rig: ServerRig) -> None:
        """What is not done comes, and what was given back has used up no attempt."""
        if not image.notes.stored:
            return
        found = _in_force(rig)
        sink = rig.stream("/v1/consume?topic=t&group=g&owner=b&lease_ms=60000&max_in_flight=1000")[1]
        rig.run()
        lines = {line["offset"]: line for line in map(decode, sink.taken().splitlines())}
        acked = {offset for offset, done in zip(ACKED, found["ack"], strict=True) if done}
        waiting = {offset for offset, failed in zip(NACKED, found["nack"], strict=True) if failed}
        assert lines.keys() == set(range(3 * ENTRIES)) - acked - waiting
        assert all(lines[offset]["attempts"] == 1 for offset in RELEASED)


def _in_force(rig: ServerRig) -> dict[str, list[bool]]:
    """Of each batch, whether its entries are in force."""
    topic = rig.server.broker.broker_state.by_name.get("t")
    group = None if topic is None else topic.groups.get("g")
    group_partition = None if group is None else group.group_partitions.get(0)
    entries = [rig.server.registry.entry(KeyOwner("", "t", "g", key)) for key in KEYS]
    return {
        "ack": [group_partition is not None and offset in group_partition.done for offset in ACKED],
        "nack": [group_partition is not None and offset in group_partition.retries for offset in NACKED],
        "idempotency/commit": [entry is not None and entry.result == RESULT for entry in entries],
    }


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_after_a_crash_a_prefix_of_each_batch_is_in_force(seed: int | None) -> None:
    """proves: G-GROUP-1, G-GROUP-3, G-GROUP-7"""
    party = Party(seed)
    history(party)
    try_all(party.images, Kept(), seed, CrashMode.DROP, least=20)


def test_a_write_that_is_torn_leaves_the_first_entries_of_a_batch() -> None:
    party = Party(None)
    history(party)
    kept = Kept()
    under_way = [image for image in party.images if image.notes.sent - image.notes.answered]
    try_all(under_way, kept, 1, *[CrashMode.TORN] * 20, least=4)
    assert {count for call, count in kept.counts if call == "ack"} == {0, ENTRIES}
    for call in ("nack", "idempotency/commit"):
        assert len({count for name, count in kept.counts if name == call}) > 2, f"no {call} was torn in this run"
