"""A server with topics and routers in a line."""

from itertools import pairwise
from typing import Any

from driftq.testing import ServerRig


def put_topic(rig: ServerRig, *names: str, durability: str = "fsync", **config: Any) -> None:
    """Create topics, or give them another config."""
    for name in names:
        rig.ok("PUT", f"/v0/topics/{name}", {"durability": durability, **config})


def put_router(rig: ServerRig, name: str, source: str, dest: str, **fields: Any) -> Any:
    """Create or change a router."""
    return rig.ok("PUT", f"/v0/routers/{name}", {"source": source, "dest": dest, **fields})


def routed(rig: ServerRig, *names: str, **fields: Any) -> None:
    """Topics, each with a router to the next, named by their two names."""
    put_topic(rig, *names)
    for source, dest in pairwise(names):
        put_router(rig, source + dest, source, dest, **fields)


def values(rig: ServerRig, topic: str, from_seq: int = 0) -> list[Any]:
    """The data of a page."""
    return [record["data"] for record in rig.diff(topic, from_seq, limit=1000)["records"]]


def listed_head(rig: ServerRig, topic: str) -> int:
    """The head as the list has it: a look that drives no router."""
    heads: dict[str, int] = {row["topic"]: row["head_seq"] for row in rig.ok("GET", "/v0/topics")["topics"]}
    return heads[topic]


def forwarded(rig: ServerRig, router: str) -> int:
    """What a router has sent."""
    total: int = rig.ok("GET", f"/v0/routers/{router}")["forwarded_total"]
    return total
