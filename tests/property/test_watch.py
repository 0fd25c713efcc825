"""A watch under everything that can happen to it: what its client knows in the end accounts for every record.

A seeded random walk writes, deletes, caps, lets time pass, makes topics anew, stalls the client, cuts its connection
with frames still under way, and comes back with the last id. At every event the client checks what it is told against
a book; at the end each seq has been delivered, told as lost, filtered, or deleted by somebody.
"""

import random
from typing import Any

import pytest

from driftq.http.v0.streams.watch_events import encode_id
from driftq.testing.server_rig import ServerRig
from tests.unit.http.v0.events import Event, Watcher

NAMES = ("a", "b", "c")
NODES = (None, "me", "you")
STEPS = 120
SEEDS = range(15)


class BrokerState:
    """What was written to one life of a topic, and what somebody asked to have removed."""

    def __init__(self) -> None:
        self.records: dict[int, tuple[object, str | None, str]] = {}
        self.deleted: set[int] = set()


class Client:
    """Follows every topic, and remembers what it was told."""

    def __init__(self, world: "World", rng: random.Random) -> None:
        self.world = world
        self.filters = rng.random() < 0.5
        options: dict[str, Any] = {"limit": rng.choice((1, 3, 256)), "max_batch_bytes": rng.choice((1, 200, 100_000))}
        if self.filters:
            options["node"] = "me"
        self.watcher = Watcher(world.rig, NAMES, **options)
        self.known: dict[str, set[int]] = {name: set() for name in NAMES}
        self.lives = dict(world.broker_states)
        """Which life of each topic it has heard of."""
        self.places = dict.fromkeys(NAMES, 0)
        self.gone: set[str] = set()
        self.last_id: dict[str, int] | None = None

    def hear(self, *, losing: int = 0) -> None:
        """Take in what has come, but for the last few events, which were lost on the way."""
        events = [event for event in self.watcher.events() if event.event not in ("retry", "comment")]
        lost = events[len(events) - losing :] if losing else []
        if any(event.data.get("reason") == "recreated" for event in lost):
            lost = []  # an id does not tell one life of a name from the next
        for event in events[: len(events) - len(lost)]:
            self.take(event)

    def take(self, event: Event) -> None:
        """One event."""
        name = event.data["topic"]
        assert name not in self.gone, "a name that is gone is gone for this stream"
        assert event.id is not None
        getattr(self, "on_" + event.event.replace("-", "_"))(name, event.data)
        assert event.id[name] == self.places[name] or event.event == "topic-deleted"
        self.last_id = event.id

    def on_record(self, name: str, data: dict[str, Any]) -> None:
        broker_state = self.world.broker_states[name]
        assert self.lives[name] is broker_state, "nobody said that this is another life of the name"
        seqs = [record["$seq"] for record in data["records"]]
        assert seqs == sorted(set(seqs))
        assert self.places[name] <= data["from_seq"] < seqs[0]
        assert seqs[-1] <= data["to_seq"] <= data["head_seq"]
        for record in data["records"]:
            value, node, _ = broker_state.records[record["$seq"]]
            assert (record["data"], record.get("$node")) == (value, node)
            assert not (self.filters and node == "me")
            assert record["$seq"] not in broker_state.deleted
        self.known[name] |= set(seqs)
        self.pass_over(name, data["to_seq"])  # also what was filtered before this batch, in silence

    def on_tombstone(self, name: str, data: dict[str, Any]) -> None:
        if data["reason"] == "recreated":
            self.known[name] = set(range(1, data["earliest_seq"]))
            self.places[name] = data["earliest_seq"] - 1
            assert self.lives[name] is not self.world.broker_states[name]
            self.lives[name] = self.world.broker_states[name]
            return
        self.pass_over(name, data["gap_from"] - 1)
        assert data["missed_estimate"] == data["gap_to"] - data["gap_from"] + 1
        self.known[name] |= set(range(data["gap_from"], data["gap_to"] + 1))
        self.places[name] = data["gap_to"]

    def on_caught_up(self, name: str, data: dict[str, Any]) -> None:
        self.pass_over(name, data["head_seq"])

    def on_topic_deleted(self, name: str, data: dict[str, Any]) -> None:
        self.gone.add(name)

    def pass_over(self, name: str, seq: int) -> None:
        """What lies up to here and was not delivered must have been deleted or filtered."""
        broker_state = self.world.broker_states[name]
        for passed in range(self.places[name] + 1, seq + 1):
            if passed not in self.known[name]:
                node = broker_state.records[passed][1]
                assert passed in broker_state.deleted or (self.filters and node == "me"), (
                    f"{name}: {passed} was skipped"
                )
                self.known[name].add(passed)
        self.places[name] = seq

    def come_back(self) -> None:
        """Another stream of the session, from the last event that was taken in."""
        self.watcher.close()
        self.gone.clear()
        headers = {} if self.last_id is None else {"last-event-id": encode_id(self.last_id).decode()}
        self.watcher.open(headers=headers)

    def stall(self, *, stalled: bool) -> None:
        """Read no more, or again."""
        self.watcher.sink.room = not stalled
        if not stalled:
            self.watcher.stream.source.room()


class World:
    """A server, what is done to it, and the book."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        cache = rng.choice((1, 1 << 20))
        self.rig = ServerRig(seed=seed, cache_bytes=cache, segment_max_events=rng.choice((4, 64)))
        self.rig.disk.cached = cache > 1
        self.broker_states: dict[str, BrokerState] = {}
        for name in NAMES:
            self.make(name)
        self.client = Client(self, rng)

    def make(self, name: str) -> None:
        """A topic, or its next life, or another config."""
        rng = self.rng
        config: dict[str, Any] = {
            "durability": rng.choice(("ephemeral", "memory", "disk", "fsync")),
            "cap_records": rng.choice((0, 0, 3, 20)),
            "ttl_ms": rng.choice((0, 0, 500)),
        }
        self.rig.ok("PUT", f"/v0/topics/{name}", config)
        self.broker_states.setdefault(name, BrokerState())

    def write(self) -> None:
        """Some records."""
        name = self.rng.choice(NAMES)
        if name not in self.broker_states:
            return
        records = []
        for _ in range(self.rng.choice((1, 1, 2, 10))):
            node, tag = self.rng.choice(NODES), self.rng.choice("xyz")
            record: dict[str, Any] = {"data": self.rng.random(), "tag": tag}
            records.append(record if node is None else record | {"node": node})
        first = self.rig.ok("POST", f"/v0/topics/{name}", {"records": records})["first_seq"]
        for seq, record in enumerate(records, first):
            self.broker_states[name].records[seq] = (record["data"], record.get("node"), record["tag"])

    def delete_records(self) -> None:
        """By seq, or by tag."""
        self.client.hear()  # what it gets after this was read after this
        name = self.rng.choice(NAMES)
        if name not in self.broker_states:
            return
        broker_state = self.broker_states[name]
        if self.rng.random() < 0.5:
            before = self.rng.randint(1, len(broker_state.records) + 2)
            broker_state.deleted |= {seq for seq in broker_state.records if seq < before}
            self.rig.ok("POST", f"/v0/topics/{name}/delete", {"before_seq": before})
        else:
            tag = self.rng.choice("xyz")
            broker_state.deleted |= {seq for seq, record in broker_state.records.items() if record[2] == tag}
            self.rig.ok("POST", f"/v0/topics/{name}/delete", {"match": tag})

    def remake(self) -> None:
        """Delete a topic, and maybe make it again at once."""
        name = self.rng.choice(NAMES)
        stalled = self.rng.random() < 0.5
        self.client.stall(stalled=stalled)
        self.client.hear()
        self.rig.ok("DELETE", f"/v0/topics/{name}")
        self.broker_states.pop(name, None)
        if not stalled:
            self.client.hear()
        if self.rng.random() < 0.8:
            self.make(name)

    def change(self) -> None:
        """Another config for a topic that is there."""
        name = self.rng.choice(NAMES)
        if name in self.broker_states:
            self.make(name)

    def wait(self) -> None:
        """Time passes."""
        self.rig.advance(self.rng.choice((1, 20, 300, 1000)))

    def stall(self) -> None:
        """The client stops reading, or begins again."""
        self.client.stall(stalled=self.rng.random() < 0.5)

    def cut(self) -> None:
        """The connection ends, and some frames with it."""
        self.client.hear(losing=self.rng.choice((0, 0, 1, 3)))
        self.client.come_back()

    def step(self) -> None:
        """One of these."""
        actions = [self.write] * 8 + [self.delete_records, self.remake, self.change, self.wait, self.stall, self.cut]
        self.rng.choice(actions)()
        if self.rng.random() < 0.7:
            self.client.hear()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_client_that_comes_back_can_account_for_every_record(seed: int) -> None:
    """inv: 56, 57, 58, 59"""
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    client = world.client
    client.hear()
    client.come_back()
    client.hear()
    for name, broker_state in world.broker_states.items():
        head = world.rig.ok("GET", f"/v0/topics/{name}")["head_seq"]
        assert client.lives[name] is broker_state
        assert client.places[name] == head
        assert client.known[name] >= set(broker_state.records), name
