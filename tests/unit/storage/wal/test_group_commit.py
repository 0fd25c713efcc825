"""Group commit of one shard: the number of writes and syncs, the order of answers, and failures (http-v0 §19.3)."""

import errno
from collections.abc import Callable

import pytest

from driftq.errors import (
    DiskFullError,
    DriftQError,
    InternalError,
    ShardStoppedError,
    ThrottledError,
)
from driftq.model.limits import WAL_QUEUE_BYTES_MAX, WAL_QUEUE_MAX
from driftq.storage.blocks.frame import Frame, Kind, encode_control
from driftq.storage.layout import Layout
from driftq.storage.wal.group_commit import Shard, Submission
from driftq.storage.wal.wal_file import WalFiles
from driftq.storage.wal.wal_head import HEAD_BYTES, FileHead, read_wal_head
from driftq.storage.wal.wal_reader import scan_of
from driftq.system.disk import Disk, Site, read_file
from driftq.testing import SHORT, CrashMode, FaultyDisk, ManualClock, ManualRuntime, OrderCheckingDisk, SimDisk

FILE_BYTES = 4096
WAL = "driftq-wal-0"


class Bench:
    """One shard on a simulated disk, and what it answered."""

    def __init__(self, wrap: Callable[[Disk], Disk] = lambda disk: disk, *, seed: int | None = None) -> None:
        self.disk = SimDisk()
        self.clock = ManualClock()
        self.runtime = ManualRuntime(self.clock, seed)
        self.layout = Layout(OrderCheckingDisk(wrap(self.disk)), "/data")
        self.layout.prepare()
        files = WalFiles(self.layout, "", FILE_BYTES)
        self.shard = Shard(self.runtime, self.clock, files, FileHead(1, 0, 1, 0, 0))
        self.answers: list[tuple[int, type[DriftQError] | None]] = []
        self.writes = 0
        self.disk.on_call = self._count

    def _count(self, operation: str, path: str) -> None:
        self.writes += operation == "pwritev" and "/wal-" in path

    def submit(self, *ops: int, sync: bool, size: int = 16) -> int:
        """Queue a submission of one control frame per op."""
        frames = [
            encode_control(Kind.DELETE, b"x" * size, topic_id=1, op=op, ts=0, synced_to=self.shard.synced_to)
            for op in ops
        ]

        def done(submission: Submission, error: DriftQError | None) -> None:
            self.answers.append((submission.number, None if error is None else type(error)))

        return self.shard.submit(Submission(frames, sync=sync, done=done))

    def go(self) -> None:
        self.shard.flush()
        self.runtime.run_until_idle()

    def ops(self, disk: SimDisk | None = None) -> list[int]:
        """The ops of every frame in the files, in order, as a start would find them."""
        layout = self.layout if disk is None else Layout(disk, "/data")
        found = []
        for number, name in layout.wal_files():
            buffer = read_file(layout.disk, layout.wal_path(name, number))
            frames = [frame for frame in scan_of(buffer, number, read_wal_head(buffer)) if isinstance(frame, Frame)]
            found += [frame.seq for frame in frames if frame.kind == Kind.DELETE]
        return found


def test_one_turn_is_one_write_and_one_sync() -> None:
    bench = Bench()
    bench.submit(1, sync=True)
    bench.go()
    writes, syncs = bench.writes, bench.disk.synced[Site.WAL_COMMIT]
    for op in range(2, 50):
        bench.submit(op, sync=True)
    bench.go()
    assert (bench.writes - writes, bench.disk.synced[Site.WAL_COMMIT] - syncs) == (1 + _rotations(bench), 1)
    assert bench.answers == [(number, None) for number in range(1, 50)]
    assert bench.ops() == list(range(1, 50))


def _rotations(bench: Bench) -> int:
    """Every file but the first adds a write of its head and one of what goes into it; its zeros are another."""
    return 3 * bench.shard.counters.rotations


def test_many_concurrent_syncs_cost_far_fewer_than_that() -> None:
    """While one batch is being written the next collects."""
    bench = Bench(seed=5)
    for op in range(1, 201):
        bench.submit(op, sync=True)
        bench.shard.flush()
        if op % 7 == 0:
            bench.runtime.turn()
    bench.runtime.run_until_idle()
    assert bench.answers == [(number, None) for number in range(1, 201)]
    assert bench.disk.synced[Site.WAL_COMMIT] < 60


def test_a_lone_write_is_synced_at_once_and_nothing_waits_for_company() -> None:
    bench = Bench()
    before = bench.clock.monotonic_ns()
    bench.submit(1, sync=True)
    bench.go()
    assert bench.answers == [(1, None)]
    assert bench.clock.monotonic_ns() == before


def test_what_asked_for_no_sync_is_settled_when_written_and_synced_by_the_timer() -> None:
    bench = Bench()
    bench.submit(1, sync=False)
    bench.go()
    assert bench.answers == [(1, None)]
    assert (bench.shard.synced_number, bench.disk.synced[Site.WAL_TIMER]) == (0, 0)
    bench.runtime.advance(1)
    assert (bench.shard.synced_number, bench.disk.synced[Site.WAL_TIMER]) == (1, 1)
    bench.runtime.advance(1000)
    assert bench.disk.synced[Site.WAL_TIMER] == 1, "nothing new is no reason to sync"


def test_the_timer_syncs_soon_behind_a_rest_and_every_ten_milliseconds_under_load() -> None:
    bench = Bench()
    bench.submit(1, sync=False)
    bench.go()
    bench.runtime.advance(1)
    bench.submit(2, sync=False)
    bench.go()
    bench.runtime.advance(9)
    assert (bench.shard.synced_number, bench.disk.synced[Site.WAL_TIMER]) == (1, 1)
    bench.runtime.advance(1)
    assert (bench.shard.synced_number, bench.disk.synced[Site.WAL_TIMER]) == (2, 2)


def test_a_stream_of_unsynced_writes_does_not_put_the_timer_off() -> None:
    bench = Bench()
    for op in range(1, 41):
        bench.submit(op, sync=False, size=1)
        bench.go()
        bench.runtime.advance(1)
    assert bench.disk.synced[Site.WAL_TIMER] + bench.disk.synced[Site.WAL_ROTATE] >= 3


def test_an_ack_comes_strictly_behind_its_sync() -> None:
    bench = Bench()
    bench.submit(1, sync=False)
    bench.submit(2, sync=True)
    bench.go()
    assert bench.shard.synced_number == 2
    assert bench.ops(bench.disk.crash(CrashMode.DROP, 0)) == [1, 2]


def test_a_completion_that_fails_skips_nobody_behind_it_and_is_heard_of() -> None:
    bench = Bench()

    def broken(_: Submission, __: DriftQError | None) -> None:
        raise KeyError("bug")

    bench.submit(1, sync=True)
    bench.shard.submit(Submission([], sync=True, done=broken))
    bench.submit(2, sync=True)
    bench.shard.flush()
    with pytest.raises(KeyError, match="bug"):
        bench.runtime.run_until_idle()
    assert bench.answers == [(1, None), (3, None)]


def test_a_sync_of_nothing_new_still_answers() -> None:
    bench = Bench()
    heard: list[DriftQError | None] = []
    bench.shard.sync(lambda _, error: heard.append(error))
    bench.go()
    assert heard == [None]


def test_the_frames_of_a_submission_stand_in_one_file() -> None:
    bench = Bench()
    bench.submit(1, sync=True, size=3000)
    bench.submit(2, 3, sync=True, size=600)
    bench.go()
    assert bench.shard.counters.rotations == 1
    assert bench.ops() == [1, 2, 3]
    second = read_file(bench.disk, "/data/wal/wal-0000000000000002.log")
    scan = scan_of(second, 2, read_wal_head(second))
    assert [f.seq for f in scan if isinstance(f, Frame) and f.kind == Kind.DELETE] == [2, 3]


def test_a_frame_larger_than_a_file_gets_a_file_of_its_own_size() -> None:
    bench = Bench()
    bench.submit(1, sync=True)
    bench.submit(2, sync=True, size=3 * FILE_BYTES)
    bench.submit(3, sync=True)
    bench.go()
    assert bench.ops() == [1, 2, 3]
    sizes = [len(read_file(bench.disk, f"/data/wal/wal-{number:016}.log")) for number in (1, 2)]
    assert sizes[0] == HEAD_BYTES + FILE_BYTES
    assert sizes[1] > 3 * FILE_BYTES
    assert bench.answers == [(1, None), (2, None), (3, None)]


def test_a_file_is_synced_to_its_end_before_the_next_begins() -> None:
    bench = Bench()
    for op in range(1, 100):
        bench.submit(op, sync=False)
        bench.go()
    assert bench.shard.counters.rotations > 1
    assert bench.disk.synced[Site.WAL_ROTATE] == bench.shard.counters.rotations
    survived = bench.ops(bench.disk.crash(CrashMode.DROP, 0))
    assert survived == list(range(1, len(survived) + 1))
    assert len(survived) > 60


def test_the_next_file_is_made_before_it_is_needed() -> None:
    bench = Bench()
    for op in range(1, 30):
        bench.submit(op, sync=True)
        bench.go()
    assert bench.disk.exists("/data/wal/wal-0000000000000002.log")
    assert bench.shard.counters.rotations == 0


def test_a_full_queue_is_refused_before_anything_is_taken() -> None:
    bench = Bench()
    bench.runtime.hold(WAL)
    for op in range(1, WAL_QUEUE_MAX + 1):
        bench.shard.check_room()
        bench.submit(op, sync=False)
    bench.shard.flush()
    with pytest.raises(ThrottledError) as refused:
        bench.shard.check_room()
    assert (refused.value.retry_after_ms, bench.shard.submit_full) == (50, 1)
    assert bench.shard.depth == WAL_QUEUE_MAX
    bench.runtime.release(WAL)
    bench.runtime.run_until_idle()
    bench.shard.check_room()
    assert (bench.shard.depth, bench.shard.queue_peak) == (0, WAL_QUEUE_MAX)


def test_a_queue_is_full_by_bytes_too() -> None:
    bench = Bench()
    bench.runtime.hold(WAL)
    huge = Submission([bytes(1 << 20)] * (WAL_QUEUE_BYTES_MAX >> 20), sync=False, done=None)
    bench.shard.submit(huge)
    bench.shard.check_room()
    bench.submit(2, sync=False)
    with pytest.raises(ThrottledError):
        bench.shard.check_room()


def failing(operation: str, error: int = errno.EIO, *, forever: bool = False) -> tuple[Bench, list[bool]]:
    """A bench whose calls of one kind on WAL files fail once the list says so."""
    armed = [False]
    disks: list[FaultyDisk] = []

    def wrap(disk: Disk) -> Disk:
        disks.append(
            FaultyDisk(
                disk,
                error=error,
                forever=forever,
                when=lambda call, path: armed[0] and call == operation and "/wal" in path,
            )
        )
        return disks[0]

    return Bench(wrap), armed


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EFBIG])
def test_a_failed_write_fails_its_batch_and_what_is_queued_behind_and_the_next_works(error: int) -> None:
    bench, armed = failing("pwritev", error)
    bench.submit(1, sync=True)
    bench.go()
    armed[0] = True
    bench.submit(2, sync=True)
    bench.submit(3, sync=False)
    bench.go()
    kind = DiskFullError if error == errno.ENOSPC else InternalError
    assert bench.answers == [(1, None), (2, kind), (3, kind)]
    bench.submit(4, sync=True)
    bench.go()
    assert bench.answers[-1] == (4, None)
    assert bench.ops() == [1, 4]
    assert bench.ops(bench.disk.crash(CrashMode.DROP, 0)) == [1, 4]


def test_what_was_queued_before_the_failure_was_heard_of_fails_too() -> None:
    """Its seqs build on those that are free again."""
    bench, armed = failing("pwritev")
    bench.submit(1, sync=True)
    bench.go()
    armed[0] = True
    bench.submit(2, sync=True)
    bench.shard.flush()
    bench.runtime.hold(WAL)
    bench.submit(3, sync=True)
    bench.shard.flush()
    bench.runtime.release(WAL)
    bench.runtime.run_until_idle()
    assert bench.answers == [(1, None), (2, InternalError), (3, InternalError)]
    assert bench.ops() == [1]


def test_the_bytes_of_a_failed_write_are_zeros_before_anything_else_is_written() -> None:
    """A write that took a part of its bytes and then failed leaves nothing that a later sync could persist."""
    calls = [0]

    def second(call: str, path: str) -> bool:
        calls[0] += armed[0] and call == "pwritev" and "/wal-" in path
        return armed[0] and call == "pwritev" and "/wal-" in path

    armed = [False]
    bench = Bench(lambda disk: FaultyDisk(FaultyDisk(disk, error=SHORT, when=second), fail_at=2, when=second))
    bench.submit(1, sync=True)
    bench.go()
    armed[0] = True
    bench.submit(2, sync=True, size=400)
    bench.go()
    armed[0] = False
    assert bench.answers[-1] == (2, InternalError)
    content = read_file(bench.disk, "/data/wal/wal-0000000000000001.log")
    scan = scan_of(content, 1, read_wal_head(content))
    assert [frame.seq for frame in scan if isinstance(frame, Frame) and frame.kind == Kind.DELETE] == [1]
    assert content[scan.end :] == bytes(len(content) - scan.end)
    bench.submit(3, sync=True)
    bench.go()
    assert bench.ops() == [1, 3]


def test_a_short_write_is_completed() -> None:
    bench, armed = failing("pwritev", SHORT)
    bench.submit(1, sync=True)
    armed[0] = True
    bench.submit(2, 3, sync=True)
    bench.go()
    assert bench.answers == [(1, None), (2, None)]
    assert bench.ops() == [1, 2, 3]


@pytest.mark.parametrize("timer", [False, True])
def test_a_failed_sync_stops_the_shard_until_a_restart(timer: bool) -> None:
    bench, armed = failing("sync")
    bench.submit(1, sync=True)
    bench.go()
    armed[0] = True
    bench.submit(2, sync=not timer)
    bench.go()
    if timer:
        bench.runtime.advance(10)
    assert bench.shard.stopped is not None
    assert bench.answers == [(1, None), (2, None if timer else ShardStoppedError)]
    assert bench.shard.synced_number == 1
    with pytest.raises(ShardStoppedError):
        bench.shard.check_room()
    bench.submit(3, sync=True)
    bench.submit(4, sync=False)
    bench.go()
    assert bench.answers[2:] == [(3, ShardStoppedError), (4, ShardStoppedError)], "never healed by a later success"


def test_a_file_that_cannot_be_made_makes_the_shard_read_only_until_it_can() -> None:
    bench, armed = failing("create", errno.ENOSPC, forever=True)
    bench.submit(1, sync=True)
    bench.go()
    armed[0] = True
    for op in range(2, 60):
        bench.submit(op, sync=True)
        bench.go()
    refused = [number for number, error in bench.answers if error is not None]
    assert {error for _, error in bench.answers if error is not None} == {DiskFullError}
    assert refused[-1] == 59
    assert bench.shard.read_only
    kept = [number for number, error in bench.answers if error is None]
    assert bench.ops() == kept
    armed[0] = False
    bench.submit(100, sync=True)
    bench.go()
    assert (bench.answers[-1][1], bench.shard.read_only, bench.shard.stopped) == (None, False, None)
    assert bench.ops() == [*kept, 100]


def test_closing_writes_and_syncs_what_is_queued() -> None:
    bench = Bench()
    bench.submit(1, sync=False)
    bench.submit(2, sync=False)
    bench.shard.close()
    assert bench.shard.synced_number == 2
    assert bench.ops(bench.disk.crash(CrashMode.DROP, 0)) == [1, 2]
    assert bench.disk.names("/data/wal") == ["wal-0000000000000001.log"], "what was prepared and not used is gone"


def test_frames_say_how_far_their_file_was_synced_when_they_were_built() -> None:
    bench = Bench()
    assert bench.shard.synced_to == 0
    bench.submit(1, sync=True)
    bench.go()
    first = bench.shard.synced_to
    assert first >> 32 == 1
    bench.submit(2, sync=False)
    bench.go()
    assert bench.shard.synced_to == first
    bench.runtime.advance(10)
    assert bench.shard.synced_to > first


def test_counters_tell_what_was_done() -> None:
    bench = Bench()
    bench.submit(1, 2, sync=True)
    bench.go()
    bench.submit(3, sync=False)
    bench.go()
    counters = bench.shard.counters
    assert (counters.frames, counters.batches, counters.syncs, counters.rotations) == (3, 2, 2, 0), (
        "one of the syncs is the head's"
    )
    assert counters.bytes == 3 * len(encode_control(Kind.DELETE, b"x" * 16, topic_id=1, op=1, ts=0))
