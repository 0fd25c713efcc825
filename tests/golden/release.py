"""Write the golden files of this release: `python -m tests.golden.release`, from the repository, at the release.

A real server and real Spark jobs write them. Files of a release are never written twice: what it wrote must open for
ever. Remove both files first only while the version is not released.
"""

import fcntl
import sys
import tarfile
import tempfile
from pathlib import Path

from msgspec import json

import driftq
from driftq.client import Client
from driftq.model.message import Envelope, RetryPolicy
from driftq.pipeline import session
from tests.golden.released import (
    ARCHIVED,
    HERE,
    LATER,
    PARTS,
    Expected,
    archived,
    copied,
    copy_orders,
    flags,
    picture,
    unpack,
)
from tests.pipeline.jobs import job_runner
from tests.pipeline.topics import finished, patiently
from tests.support.command_line import apart
from tests.support.process import ServerProcess, serving


def fill(client: Client) -> None:
    """Write something of every kind that a data directory keeps."""
    orders = client.topic("orders")
    orders.create(durability="fsync")
    for first in range(0, 20, 4):
        orders.write([{"data": {"n": n}, "tag": f"t{n % 3}", "meta": {"m": str(n)}} for n in range(first, first + 4)])
    orders.write([{"data": "größe 😀", "node": "node-a"}], idempotency_key="one")
    orders.delete_records(match=("tag", "Eq", "t2"))
    client.topic("capped").create(cap_records=3)
    client.topic("capped").write([{"data": n} for n in range(9)])
    client.topic("ephemeral").create(durability="ephemeral")
    client.topic("ephemeral").append("gone after a restart")
    client.topic("memory").create(durability="memory")
    client.topic("memory").write([{"data": n} for n in range(12)])
    client.put_router("orders->eu", source="orders", dest="eu", filter=("tag", "Glob", "t1*"))
    orders.write([{"data": {"n": n}, "tag": f"t{n % 2}"} for n in range(20, 24)])
    orders.set_cursor("reader", 7)
    _jobs(client)
    _messages(client)


def _jobs(client: Client) -> None:
    """A queue with a job that is done, one that became a dead letter, one that is leased, and two that wait."""
    jobs = client.topic("jobs")
    jobs.create(type="queue", durability="fsync", max_deliveries=1, dead_letter="jobs.dead")
    jobs.write([{"data": f"job {n}", "tag": "j"} for n in range(5)])
    claimed = jobs.claim(node="worker", max=2).claimed
    jobs.ack(claimed[:1], node="worker")
    jobs.nack(claimed[1:], node="worker")
    jobs.claim(node="worker", max=1)


def _messages(client: Client) -> None:
    """Two partitions, a group that acked out of order, a dead letter, a run of two steps."""
    broker = client.broker
    broker.create_topic("tasks", partitions=2)
    for number, (step, parent) in enumerate([("plan", ""), ("write", "plan"), ("check", "write"), ("tell", "write")]):
        policy = RetryPolicy(max_attempts=1) if step == "check" else None
        envelope = Envelope(run_id="run-1", step_id=step, parent_step_id=parent, retry_policy=policy)
        broker.produce("tasks", f"value {number}", key=f"key {number % 2}", envelope=envelope)
    waiting = {f"value {number}" for number in range(4)}
    for message in broker.consume("tasks", group="agents", owner="golden"):
        if message.value == "value 2":
            broker.nack(message, "it failed")
        elif message.value == "value 3":
            broker.ack(message)
        waiting.discard(message.value)
        if not waiting:
            break


def killed(server: ServerProcess) -> None:
    """Kill the server alone, and wait until its writers have written what they were sent and let go of the lock."""
    server.process.kill()
    server.process.wait()
    with (server.data_dir / ".driftq.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def write(place: Path, archive: Path) -> None:
    """Make all parts below a place, and pack them."""
    with serving(place, *flags(place)) as server:
        server.wait_ready()
        url = f"http://{server.address}"
        with Client(url) as client:
            fill(client)
            assert apart("backup", "--url", url).code == 0
            client.topic("orders").write([{"data": {"n": n}, "tag": "after the backup"} for n in range(24, 27)])
            spark = session(url, master="local[2]", short=True)
            finished(lambda: copy_orders(spark, url, place / "checkpoint"))
            run = job_runner(url, place / "state")
            patiently(lambda: run("archive", topics=list(ARCHIVED), lake=str(place / "lake")))
            spark.stop()
            client.topic("orders").write([{"data": {"n": n}, "tag": "later"} for n in range(27, 27 + LATER)])
        killed(server)
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for part in PARTS:
            packed.add(place / part, part, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def described(version: str, place: Path) -> Expected:
    """Return what this version shows of files that it has just written."""
    unpack(version, place)
    lake = archived(place / "lake")
    with serving(place, *flags(place)) as server:
        server.wait_ready()
        data, copy = picture(server), copied(server)
    again = place / "again"
    done = apart("restore", "--from", place / "backups", "--data-dir", again / "data", "--cold-dir", again / "cold")
    assert done.code == 0, done.err
    with serving(again, *flags(again)) as server:
        server.wait_ready()
        backup = picture(server)
    return Expected(data=data, backup=backup, lake=lake, copied=copy)


def main() -> None:
    """Write both files of this version, if it has none."""
    version = driftq.__version__
    archive = HERE / f"{version}.tar.xz"
    if archive.exists():
        sys.exit(f"{version} has its files, and they stay as they are")
    HERE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="driftq-release-") as first:
        write(Path(first), archive)
    with tempfile.TemporaryDirectory(prefix="driftq-release-") as second:
        found = described(version, Path(second))
    (HERE / f"{version}.json").write_bytes(json.format(json.encode(found)) + b"\n")
    sys.stdout.write(f"{archive.name}: {archive.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
