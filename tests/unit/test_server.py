"""The composition root: directories, and what a server says of itself."""

import errno

import pytest

from driftq.codec.write_body import make_rows
from driftq.config import Settings
from driftq.errors import DataDirLockedError, ShuttingDownError, StartError
from driftq.model.topic_config import Durability, TopicConfig
from driftq.model.v0_answers import Holes
from driftq.server import Server
from driftq.system.disk import Disk
from driftq.testing import CrashMode, FaultyDisk, ManualClock, ManualRuntime, OrderCheckingDisk, SimDisk

FSYNC = TopicConfig(durability=Durability.FSYNC)
DISK = TopicConfig(durability=Durability.DISK)


def open_server(disk: Disk, data_dir: str = "/data", cold_dir: str | None = None) -> tuple[Server, ManualRuntime]:
    clock = ManualClock()
    runtime = ManualRuntime(clock)
    return Server(Settings(data_dir=data_dir, cold_dir=cold_dir), OrderCheckingDisk(disk), clock, runtime), runtime


def write(server: Server, runtime: ManualRuntime, name: str, config: TopicConfig) -> None:
    appended = server.engine.append(name, make_rows([b"1"] * 10), config=config)
    runtime.run_until_idle()
    assert appended.result().count == 10


def test_directories_are_made_durably_with_what_is_above_them() -> None:
    """A power loss behind the first ack must not take the directory it lives in. proves: G-DUR-1"""
    disk = SimDisk(["/"])
    server, runtime = open_server(disk, "/srv/driftq/data", "/srv/cold")
    write(server, runtime, "t", FSYNC)
    survived = disk.crash(CrashMode.DROP, seed=1)
    again, _ = open_server(survived, "/srv/driftq/data", "/srv/cold")
    assert again.readiness().topics == 1
    assert again.engine.topic("t").head == 10


def test_a_directory_in_use_is_refused_and_the_first_server_goes_on() -> None:
    disk = SimDisk()
    server, runtime = open_server(disk)
    with pytest.raises(DataDirLockedError, match="/data is in use"):
        open_server(disk)
    write(server, runtime, "t", FSYNC)


@pytest.mark.parametrize("data_dir", ["/data/file", "/data/file/below"])
def test_a_file_is_no_data_directory(data_dir: str) -> None:
    disk = SimDisk()
    disk.create("/data/file").close()
    with pytest.raises(StartError, match="/data/file"):
        open_server(disk, data_dir)
    assert disk.names("/data") == ["file"]


def test_the_cold_directory_must_be_another() -> None:
    with pytest.raises(StartError, match="must be another"):
        open_server(SimDisk(), "/data", "/data/")


def test_a_disk_that_cannot_make_the_directory_refuses_the_start() -> None:
    disk = FaultyDisk(SimDisk(), error=errno.ENOSPC)
    with pytest.raises(StartError, match="/data/new cannot be used"):
        open_server(disk, "/data/new")


def test_readiness_counts_topics_and_has_no_holes_to_tell_of() -> None:
    server, runtime = open_server(SimDisk())
    write(server, runtime, "a", FSYNC)
    write(server, runtime, "b", DISK)
    assert (server.readiness().topics, server.readiness().holes) == (2, None)


def test_readiness_tells_of_a_crash() -> None:
    """proves: G-TOMB-2"""
    disk = SimDisk()
    server, runtime = open_server(disk)
    write(server, runtime, "t", DISK)
    again, _ = open_server(disk.crash(CrashMode.DROP, seed=1))
    assert again.readiness().holes == Holes(corruption=0, crash=1, control=0, at_most=1)


def test_readiness_tells_of_records_that_a_failed_write_may_take_behind_their_ack() -> None:
    full: list[bool] = []
    disk = FaultyDisk(SimDisk(), error=errno.ENOSPC, when=lambda operation, _: operation == "pwritev" and bool(full))
    server, runtime = open_server(disk)
    write(server, runtime, "t", DISK)
    full.append(True)
    write(server, runtime, "t", DISK)
    assert server.readiness().holes == Holes(corruption=0, crash=1, control=0, at_most=1)


def test_a_server_that_closes_is_not_ready_and_closes_once() -> None:
    server, runtime = open_server(SimDisk())
    closing = server.close()
    assert server.close() is closing
    with pytest.raises(ShuttingDownError):
        server.readiness()
    runtime.advance(1000)
    assert closing.result()
