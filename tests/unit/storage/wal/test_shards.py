"""The shards of a run: numbers above all others, names by their count, every topic in one of them."""

import pytest

from driftq.storage.blocks.frame import Kind, encode_control
from driftq.storage.layout import Layout
from driftq.storage.wal.group_commit import Submission
from driftq.storage.wal.shards import Shards
from driftq.storage.wal.wal_head import read_wal_head
from driftq.system.disk import read_file
from driftq.testing import ManualClock, ManualRuntime, SimDisk


def opened(disk: SimDisk, count: int) -> tuple[Shards, ManualRuntime]:
    clock = ManualClock()
    runtime = ManualRuntime(clock)
    layout = Layout(disk, "/data")
    layout.prepare()
    return Shards(layout, runtime, clock, count=count, file_bytes=4096), runtime


def use(disk: SimDisk, count: int) -> list[str]:
    """A run that writes one frame to every shard; the files it leaves."""
    shards, runtime = opened(disk, count)
    for topic_id in range(count):
        frame = encode_control(Kind.DELETE, b"", topic_id=topic_id, op=1, ts=0)
        shards.of(topic_id).submit(Submission([frame], sync=True, done=None))
    shards.flush()
    runtime.run_until_idle()
    shards.close()
    return [f"{name}/{number}" for number, name in Layout(disk, "/data").wal_files()]


def test_one_shard_is_flat_and_several_have_directories() -> None:
    assert use(SimDisk(), 1) == ["/1"]
    assert use(SimDisk(), 3) == ["shard-00/1", "shard-01/1", "shard-02/1"]


def test_a_run_begins_above_every_number_in_every_directory() -> None:
    disk = SimDisk()
    assert use(disk, 2) == ["shard-00/1", "shard-01/1"]
    assert use(disk, 1) == ["shard-00/1", "shard-01/1", "/2"]
    assert use(disk, 4)[3:] == ["shard-00/3", "shard-01/3", "shard-02/3", "shard-03/3"]
    assert use(disk, 1)[-1] == "/4"


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_topic_has_one_shard(count: int) -> None:
    shards, _ = opened(SimDisk(), count)
    for topic_id in range(1, 50):
        assert shards.of(topic_id) is shards.all[topic_id % count]


def test_every_file_begins_with_a_frame_that_says_whose_it_is() -> None:
    disk = SimDisk()
    for name in use(disk, 2):
        directory, _, number = name.rpartition("/")
        content = read_file(disk, Layout(disk, "/data").wal_path(directory, int(number)))
        head = read_wal_head(content)
        assert head is not None
        assert (head.frame.kind, head.version) == (Kind.FILE_HEAD, 2)
