"""What a whole server keeps, and what a failing disk costs."""

import errno

import pytest

from driftq.testing import FaultyDisk, SimDisk
from tests.unit.http.v1.client import Client


@pytest.mark.parametrize("life", ["restart", "crash", "kill"])
def test_topics_and_the_partitions_of_keys_stay(life: str) -> None:
    """inv1: 72"""
    client = Client()
    client.create("empty", 7)
    client.create("t", 5)
    keys = [f"key{number}" for number in range(20)]
    for _ in range(2):
        for key in keys:
            client.produce("v", key=key)
        getattr(client, life)()
        assert client.topics() == ["empty", "t"]
        assert (client.create("empty"), client.create("t")) == (7, 5)
    found = {(item["key"], item["partition"]) for item in client.all()}
    assert {key for key, _ in found} == set(keys)
    assert len(found) == len(keys)
    assert len({partition for _, partition in found}) == 5


def _log(disk: SimDisk) -> tuple[str, bytes]:
    """The path and the bytes of the log."""
    (name,) = (name for name in disk.names("/data/wal") if name.endswith(".log"))
    path = f"/data/wal/{name}"
    return path, disk.open(path).pread(1 << 20, 0)


def test_a_log_whose_end_is_cut_off_costs_its_last_record_at_most() -> None:
    """inv1: 73"""
    client = Client()
    client.create()
    client.produce("0", "1")
    _, before = _log(client.disk)
    client.produce("2")
    path, after = _log(client.disk)
    begins = next(place for place in range(len(after)) if before[place : place + 1] != after[place : place + 1])
    sizes = range(begins, len(after.rstrip(b"\0")))
    assert len(sizes) > 20
    for size in sizes:
        disk = client.disk.fork()
        disk.open(path).truncate(size)
        again = Client(disk=disk)
        assert [item["value"] for item in again.all()] == ["0", "1"]
        again.produce("new")
        assert [item["offset"] for item in again.all()] == [0, 1, 2]


class _Fault:
    """Lets writes of the log fail while it is armed."""

    def __init__(self) -> None:
        self.armed = False

    def wrap(self, disk: SimDisk) -> FaultyDisk:
        return FaultyDisk(
            disk,
            error=errno.EIO,
            forever=True,
            when=lambda operation, path: self.armed and operation == "pwritev" and "wal-" in path,
        )


def test_what_cannot_be_written_has_not_happened() -> None:
    """inv1: 74"""
    fault = _Fault()
    client = Client(wrap=fault.wrap)
    client.create()
    client.produce("0")
    consumer = client.consume(lease_ms=1000)
    assert consumer.offsets() == [0]
    fault.armed = True
    for refused in (client.offer("1"), consumer.settle("ack", 0)):
        assert (refused.status, refused.body["error"]) == (500, "INTERNAL")
    assert consumer.offsets() == []
    fault.armed = False
    client.advance(1251)
    assert consumer.offsets() == [0]
    client.produce("2")
    assert consumer.values() == ["2"]
    client.crash()
    assert [(item["offset"], item["value"]) for item in client.consume().take()] == [(0, "0"), (1, "2")]


def test_a_reason_is_cut_and_a_loop_of_nacks_costs_the_same_each_time() -> None:
    """inv1: 77"""
    client = Client(nack_guard_ms=0)
    client.create()
    client.produce("v")
    consumer = client.consume()
    consumer.take()
    sizes = []
    for _ in range(40):
        before = client.figure("driftq_wal_bytes_written_total") or 0
        consumer.nack(0, "€" * 5000)
        assert len(consumer.one()["last_error"].encode()) == 4095
        sizes.append((client.figure("driftq_wal_bytes_written_total") or 0) - before)
    assert max(sizes) - min(sizes) <= 16
    assert 4096 <= max(sizes) <= 5000
