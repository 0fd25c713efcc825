"""A data directory of routers: copies that are derived and copies that are logged, in the checkpoint and behind it."""

from typing import Any

from msgspec import structs

from driftq.config import Settings
from driftq.testing import ServerRig, SimDisk
from driftq.testing.engine_rig import SMALL
from tests.unit.features.router.routed_rig import put_router, put_topic

FORMAT = 1
SETTINGS: Settings = structs.replace(SMALL, wal_file_bytes=8 << 10)
TOPICS = ("source", "copy", "picked", "exact", "late", "brief")


class RoutedRig(ServerRig):
    """A server."""

    def __init__(self, disk: SimDisk) -> None:
        super().__init__(SETTINGS, disk=disk)


def _write(rig: RoutedRig, *numbers: int) -> None:
    """Records, every other one with the tag that a filter takes."""
    records = [{"data": {"n": number}, "tag": f"{'even' if number % 2 == 0 else 'odd'}-{number}"} for number in numbers]
    rig.ok("POST", "/v0/topics/source", {"records": records})


def build() -> RoutedRig:
    """The run; it ends without a word."""
    rig = RoutedRig(SimDisk(roots=("/data", "/cold")))
    put_topic(rig, *TOPICS)
    put_router(rig, "plain", "source", "copy")
    put_router(rig, "on", "copy", "late")
    put_router(rig, "filtered", "source", "picked", filter=["tag", "Glob", "even-*"])
    put_router(rig, "once", "source", "exact", guarantee="exactly_once")
    put_router(rig, "ended", "source", "brief")
    _write(rig, 1, 2, 3)
    rig.ok("DELETE", "/v0/routers/ended")
    for topic in TOPICS:
        rig.diff(topic)
    rig.runtime.advance(6000)
    rig.server.engine.checkpointer.run()
    rig.run()
    _write(rig, 4, 5, 6)
    put_router(rig, "filtered", "source", "picked", filter=["tag", "Glob", "odd-*"])
    _write(rig, 7, 8)
    put_topic(rig, "source", cap_records=3)
    _write(rig, 9)
    for topic in TOPICS[1:]:
        rig.diff(topic)
    rig.runtime.advance(20)
    return rig


def picture(rig: RoutedRig) -> dict[str, Any]:
    """What readers find in every topic, and what is told of every router."""
    routers = {row["router"]: row for row in rig.ok("GET", "/v0/routers")["routers"]}
    return {
        "routers": {name: {key: value for key, value in row.items() if key in _KEPT} for name, row in routers.items()},
        "topics": {topic: _page(rig, topic) for topic in TOPICS},
    }


def _page(rig: RoutedRig, topic: str) -> dict[str, Any]:
    return {key: value for key, value in rig.diff(topic, limit=1000).items() if key != "epoch"}


_KEPT = ("source", "dest", "filter", "guarantee", "forwarded_total", "cursor")
