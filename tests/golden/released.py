"""What a release left behind, and how it is read: a data directory, a backup, a lake and the checkpoint of a query.

Each release has two files in `releases/`. The archive `<version>.tar.xz` has `data` and `cold` (a server that was
killed, so with a checkpoint and a log after it), `backups`, `lake` (of the job `archive`) and `checkpoint` (of the
query `copy_orders`). `<version>.json` is what a server and the tables show of them. `python -m tests.golden.release`
writes both, once, at the release.
"""

import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, json

from driftq.pipeline.lake.delta_tables import Lake
from tests.support.process import Served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

HERE = Path(__file__).parent / "releases"
PARTS = ("data", "cold", "backups", "lake", "checkpoint")
ARCHIVED = ("orders", "@tasks")
LATER = 5
"""Records of `orders` that are in the data directory and neither in the lake nor in the copy."""
_VOLATILE = {
    "performance",
    "synced_seq",
    "last_write_ts",
    "last_read_ts",
    "effective_priority",
    "created_ts",
    "updated_ts",
}


class Expected(Struct, frozen=True, kw_only=True):
    """What must be found, by part."""

    data: dict[str, Any]
    backup: dict[str, Any]
    lake: dict[str, list[list[Any]]]
    copied: list[Any]


def releases() -> list[str]:
    """Return the versions that have files here."""
    return sorted(path.stem for path in HERE.glob("*.json"))


def expected(version: str) -> Expected:
    """Return what a release's files must show."""
    return json.decode((HERE / f"{version}.json").read_bytes(), type=Expected)


def unpack(version: str, into: Path) -> None:
    """Unpack a release's files, each part as a directory."""
    with tarfile.open(HERE / f"{version}.tar.xz") as archive:
        archive.extractall(into, filter="data")


def flags(place: Path) -> list[str]:
    """Return the settings with which the files were written: small log files and segments, a cold tier, backups."""
    return [
        *("--cold-dir", str(place / "cold"), "--backup-dir", str(place / "backups")),
        *("--wal-file-bytes", "65536", "--disk-reserve-bytes", "0"),
        *("--segment-max-events", "8", "--hot-retain-segments", "1"),
    ]


def picture(server: Served) -> dict[str, Any]:
    """Return everything that clients can see and that does not depend on when they look."""
    names = [row["topic"] for row in _get(server, "/v0/topics?page_size=1000")["topics"]]
    return {
        "topics": {name: _topic(server, name) for name in names},
        "routers": [_plain(_get(server, f"/v0/routers/{name}")) for name in _routers(server)],
        "groups": [_group(row) for row in _get(server, "/v1/groups?topic=tasks")["groups"]],
        "steps": [(step["step_id"], step["offset"]) for step in _get(server, "/v1/runs/run-1")["steps"]],
    }


def _topic(server: Served, name: str) -> dict[str, Any]:
    state = _plain(_get(server, f"/v0/topics/{name}"))
    asked = {"from_seq": 0, "limit": 1000, "include_tags": True}
    status, page = server.ask("POST", f"/v0/topics/{name}/diff", asked)
    assert (status, page["caught_up"] or page["tombstone"] is not None) == (200, True), page
    cursors = [_plain(row) for row in _get(server, f"/v0/topics/{name}/cursors")["cursors"]]
    return {"state": state, "tombstone": page["tombstone"], "records": page["records"], "cursors": cursors}


def _routers(server: Served) -> list[str]:
    return [row["router"] for row in _get(server, "/v0/routers")["routers"]]


def _group(row: dict[str, Any]) -> dict[str, Any]:
    kept = ("partition", "floor", "last_acked", "done", "lag")
    return {"group": row["group"], "partitions": [{name: each[name] for name in kept} for each in row["partitions"]]}


def _plain(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in _VOLATILE}


def _get(server: Served, path: str) -> dict[str, Any]:
    status, answer = server.get(path)
    assert status == 200, (path, answer)
    return answer


def archived(lake: Path) -> dict[str, list[list[Any]]]:
    """Return the rows of the lake's tables, in the order of their seqs."""
    tables = {topic: Lake(lake).topic(topic).read(["seq", "tag", "data"]).sort_by("seq") for topic in ARCHIVED}
    return {topic: [list(row.values()) for row in table.to_pylist()] for topic, table in tables.items()}


def shows(found: Any, wanted: Any) -> bool:
    """Whether all of `wanted` is in `found`: a later version may show more fields, and no other values."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(name in found and shows(found[name], wanted[name]) for name in wanted)
    if isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(map(shows, found, wanted))
    return bool(found == wanted)


def copied(server: Served) -> list[Any]:
    """Return what the query has written."""
    status, page = server.ask("POST", "/v0/topics/copied/diff", {"from_seq": 0, "limit": 1000})
    assert status == 200
    return [record["data"] for record in page["records"]]


def copy_orders(spark: "SparkSession", url: str, checkpoint: Path) -> "StreamingQuery":
    """Start the query of the checkpoint: orders into another topic, exactly once, until all that exist are copied."""
    source = spark.readStream.format("driftq").option("server", url).option("topic", "orders")
    rows = source.option("startingSeq", "earliest").option("maxRecordsPerTrigger", "10").load().select("tag", "data")
    writer = rows.writeStream.format("driftq").option("server", url).option("topic", "copied").queryName("copy-orders")
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
