"""Random histories of topics and routers on one server, and the picture a reader has of them."""

import random
from typing import Any

from driftq.testing import CrashMode, ServerRig

TOPICS = ("a", "b", "c", "d")
_ROUTERS = (("ab", "a", "b"), ("ab2", "a", "b"), ("bc", "b", "c"), ("cd", "c", "d"), ("ad", "a", "d"))
_FILTERS = (None, None, None, "x", ["tag", "Glob", "x*"])


class Routed:
    """A server under a random history; a topic keeps the class it was given at first, out of `classes`."""

    def __init__(self, seed: int, *, classes: tuple[str, ...] = ("fsync",), shards: int = 1) -> None:
        self.rng = random.Random(seed)
        self.classes = {topic: self.rng.choice(classes) for topic in TOPICS}
        self.rig = ServerRig(seed=seed, wal_shards=shards, checkpoint_interval_ms=10**9)
        self.values = 0
        for topic in TOPICS:
            self.put_topic(topic)

    def put_topic(self, topic: str) -> None:
        """Give a topic some config."""
        config: dict[str, Any] = {"durability": self.classes[topic]}
        if self.rng.random() < 0.3:
            config["cap_records"] = self.rng.choice([1, 3, 8, 40])
            config["discard"] = self.rng.choice(["old", "old", "reject"])
        self.rig.ok("PUT", f"/v0/topics/{topic}", config)

    def step(self) -> None:
        """Something."""
        rng = self.rng
        act = rng.choices(
            (self.write, self.delete, self.put_router, self.delete_router, self.configure, self.look, self.pass_time),
            (12, 4, 4, 1, 2, 4, 2),
        )[0]
        act()
        if rng.random() < 0.03:
            checkpointed = self.rig.server.engine.checkpointer.run()
            self.rig.run()
            assert checkpointed.result()

    def write(self) -> None:
        """Some records, maybe too many for their topic."""
        rng = self.rng
        topic = rng.choice("aaabcd")
        records = []
        for _ in range(rng.choice([1, 1, 2, 5, 30])):
            self.values += 1
            record: dict[str, Any] = {"data": self.values}
            if rng.random() < 0.5:
                record["tag"] = rng.choice(["x", "xy", "z"])
            if rng.random() < 0.3:
                record["node"] = rng.choice("mn")
            if rng.random() < 0.3:
                record["meta"] = {"k": str(self.values)}
            records.append(record)
        status, _ = self.rig.ask("POST", f"/v0/topics/{topic}", {"records": records})
        assert status in (200, 400, 422), status

    def delete(self) -> None:
        """Some records, by tag or by seq."""
        topic = self.rng.choice(TOPICS)
        head = self.rig.server.engine.topic(topic).head
        if self.rng.random() < 0.5:
            body: dict[str, Any] = {"match": self.rng.choice(["x", "z"])}
        else:
            body = {"before_seq": self.rng.randrange(head + 2)}
        self.rig.ok("POST", f"/v0/topics/{topic}/delete", body)

    def put_router(self) -> None:
        """One of a few, or other flags for it."""
        name, source, dest = self.rng.choice(_ROUTERS)
        body = {
            "source": source,
            "dest": dest,
            "filter": self.rng.choice(_FILTERS),
            "preserve_tag": self.rng.random() < 0.8,
            "preserve_node": self.rng.random() < 0.8,
            "guarantee": self.rng.choice(["at_least_once", "exactly_once"]),
        }
        status, _ = self.rig.ask("PUT", f"/v0/routers/{name}", body)
        assert status in (200, 201, 409), status

    def delete_router(self) -> None:
        """One of them, if it is there."""
        self.rig.ok("DELETE", f"/v0/routers/{self.rng.choice(_ROUTERS)[0]}")

    def configure(self) -> None:
        """Another config."""
        self.put_topic(self.rng.choice(TOPICS))

    def look(self) -> None:
        """A read, which drives routers."""
        self.rig.diff(self.rng.choice(TOPICS))

    def pass_time(self) -> None:
        """Timers run."""
        self.rig.advance(self.rng.choice([1, 60, 1500]))

    def settle(self) -> None:
        """Until no router has anything to do, or can do it."""
        self.rig.advance(300)

    def lose(self) -> None:
        """The process, or the power."""
        mode = self.rng.choice([None, *CrashMode])
        shards = self.rng.choice([self.rig.settings.wal_shards, 1, 2, 3])
        if mode is None:
            self.rig.kill(wal_shards=shards)
        else:
            self.rig.crash(mode, self.rng.randrange(100), wal_shards=shards)

    def picture(self) -> dict[str, Any]:
        """What readers find, `$ts` aside."""
        found: dict[str, Any] = {}
        for topic in TOPICS:
            state = self.rig.ok("GET", f"/v0/topics/{topic}")
            found[topic] = {key: state[key] for key in ("head_seq", "earliest_seq", "count", "bytes")}
            found[topic]["story"] = self.story(topic)
        for row in self.rig.ok("GET", "/v0/routers")["routers"]:
            router = self.rig.ok("GET", f"/v0/routers/{row['router']}")
            found[row["router"]] = {key: value for key, value in router.items() if key != "performance"}
        return found

    def story(self, topic: str) -> list[Any]:
        """Records and tombstones in the order a reader meets them."""
        met: list[Any] = []
        cursor = 0
        while True:
            page = self.rig.diff(topic, cursor, include_tags=True, limit=1000)
            if page["tombstone"] is not None:
                tombstone = page["tombstone"]
                met.append((tombstone["reason"], tombstone["gap_from"], tombstone["gap_to"]))
            met += [{key: value for key, value in record.items() if key != "$ts"} for record in page["records"]]
            if page["caught_up"]:
                return met
            cursor = page["next_from_seq"]
