"""Disks that fail: the Nth call, once or for ever, with an error, without space, or with half a write."""

import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from driftq.errors import DiskFullError, DriftQError, ShardReadOnlyError, ShardStoppedError, StartError
from driftq.model.tombstone import Reason
from driftq.storage.blocks.frame import Frame
from driftq.storage.wal.wal_head import read_wal_head
from driftq.storage.wal.wal_reader import scan_of
from driftq.system.disk import Disk
from driftq.system.runtime import Pending
from driftq.testing import SHORT, CrashMode, FaultyDisk, SimDisk
from tests.crash.ledger import origin
from tests.crash.sweep import ALL, KILL, MODES, crash
from tests.crash.world import World

pytestmark = pytest.mark.crash

_STEP = 1 if ALL else 3
"""Of the calls that could fail every so manieth is tried by default, from another first one for each fault."""


class Faulty:
    """A world on a faulty disk, whose clients take errors for an answer."""

    def __init__(self, **fault: Any) -> None:
        self.disk: FaultyDisk | None = None
        self._fault = fault
        self.world = World(wrap=self._wrap)
        self.answers: list[Pending[Any]] = []
        self.refused: list[DriftQError] = []

    def _wrap(self, disk: SimDisk) -> Disk:
        if self.disk is None:
            self.disk = FaultyDisk(disk, **self._fault)
            return self.disk
        return disk

    @property
    def faulty(self) -> FaultyDisk:
        assert self.disk is not None
        return self.disk

    def ask(self, call: Callable[..., Pending[Any]], *args: Any, **kwargs: Any) -> None:
        """Make a call if its topic is there."""
        if call != self.world.put and self.world.engine.catalog.find(args[0]) is None:
            return
        try:
            self.answers.append(call(*args, **kwargs))
        except DriftQError as error:
            self.refused.append(error)

    def work(self) -> None:
        """A bit of everything that touches the disk."""
        world = self.world
        names = ("fsync", "disk", "memory", "capped", "fourth")
        world.start(segment_max_events=5, wal_file_bytes=2048, cold_dir="/cold", hot_retain_segments=1, wal_shards=2)
        for name in names:
            self.ask(world.put, name, name if name in ("disk", "memory") else "fsync", **_caps(name))
        world.settle()
        for turn in range(3):
            for name in names:
                self.ask(world.append, name, 3, tags=["a", "b", None], key=f"k{turn}")
                self.ask(world.append, name, 1, padding=100)
            world.settle()
        self.ask(world.delete, "fsync", tag="a")
        self.ask(world.delete, "disk", seqs=[2, 4])
        self.ask(world.drop, "fourth")
        world.settle()
        world.checkpoint()
        for name in names:
            self.ask(world.append, name, 4, tags=["a", "b"])
        world.advance(5100)
        self.ask(world.put, "memory", "fsync")
        self.ask(world.delete, "fsync", before=6)
        self.ask(world.append, "memory", 2)
        world.settle()
        world.checkpoint()
        self.ask(world.append, "fsync", 2)
        world.advance(1100)

    def check_answers(self) -> None:
        """Everybody was answered, with a value or with an error of ours."""
        for answer in self.answers:
            assert answer.settled
            assert answer.error is None or isinstance(answer.error, DriftQError)

    def check_reads(self) -> None:
        """Reads go on, and show what was acked and nothing that failed."""
        ledger = self.world.ledger
        for topic in self.world.engine.catalog.visible():
            for record in self.world.read(topic.name).records:
                assert origin(record.data)[0] not in ledger.failed
                assert ledger.acked[topic.id, record.seq].record == record

    def check_writes(self) -> None:
        """With the device well again writes go on, but on a shard whose sync failed."""
        world = self.world
        self.faulty.heal()
        world.advance(2100)
        for topic in list(world.engine.catalog.visible()):
            stopped = world.engine.change_log.shard_of(topic).stopped
            if stopped is not None:
                assert isinstance(stopped, ShardStoppedError)
                with pytest.raises(ShardStoppedError):
                    world.append(topic.name, 1)
                continue
            answer = world.append(topic.name, 2)
            world.settle()
            assert answer.result().first_seq == topic.head - 1
        self.check_reads()

    def check_restarts(self, seed: int) -> None:
        """Nothing acked is lost, whatever becomes of what no sync has covered."""
        world = self.world
        for mode in MODES:
            disk = crash(world.disk, mode, seed)
            again = World(disk, ledger=world.ledger.copy(), wall_ms=world.clock.wall_ms(), settings=world.settings)
            again.start()
            again.judge()
            again.append("fsync", 1) if again.engine.catalog.find("fsync") else None
            again.settle()
            if mode == KILL:
                self._check_failed_are_gone(again)

    def _check_failed_are_gone(self, again: World) -> None:
        """What a failed write left was overwritten; only behind a failed sync nobody can say."""
        failed = {n for n, error in self.world.ledger.failed.items() if not isinstance(error, ShardStoppedError)}
        for reading in again.read_everything().values():
            assert not failed & {origin(record.data)[0] for record in reading.records}


def _caps(name: str) -> dict[str, int]:
    return {"cap_records": 7} if name == "capped" else {}


def _until_no_fault(start: int, **fault: Any) -> Iterator[tuple[int, Faulty]]:
    """Runs in which call number N fails, for growing N, until a run meets no fault."""
    number = start
    while True:
        faulty = Faulty(fail_at=number, **fault)
        try:
            faulty.work()
        except StartError:
            assert faulty.faulty.failed
            _check_refused_start(faulty)
        else:
            if not faulty.faulty.failed:
                return
            yield number, faulty
        number += _STEP


def _check_refused_start(faulty: Faulty) -> None:
    """A start that met the fault changed nothing that the next one cannot live with."""
    faulty.faulty.heal()
    again = World(faulty.world.disk, settings=faulty.world.settings).start()
    again.put("fsync")
    again.settle()
    again.append("fsync", 2)
    again.settle()
    again.crash(CrashMode.DROP)
    again.judge()
    assert len(again.read("fsync").records) == 2


@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, SHORT], ids=["EIO", "ENOSPC", "SHORT"])
def test_the_nth_call_fails_and_nothing_acked_is_lost(error: int, *, forever: bool) -> None:
    """proves: G-IO-1, G-IO-2, G-IO-4, G-IO-6, G-IO-7, G-DUR-9, G-CKPT-3, G-KEY-2"""
    runs = 0
    for number, faulty in _until_no_fault(1 + error % _STEP + forever, error=error, forever=forever):
        runs += 1
        try:
            faulty.check_answers()
            if error == SHORT:
                assert not faulty.refused
                assert not any(answer.error for answer in faulty.answers)
            faulty.check_reads()
            faulty.check_writes()
            faulty.check_restarts(number)
        except Exception as failure:
            raise AssertionError(f"call {number}: {failure}") from failure
    assert runs > 10


def _settled(world: World, call: Callable[[], Pending[Any]]) -> Any:
    """Return the answer to a call, or raise its error, whenever that comes."""
    answer = call()
    world.advance(1500)
    return answer.result()


def test_a_full_disk_refuses_writes_and_goes_on_with_space_back() -> None:
    """proves: G-IO-4, G-IO-1, G-DUR-9"""
    faulty = Faulty(error=errno.ENOSPC, forever=True, when=lambda _, path: "/wal-" in path, fail_at=13)
    world = faulty.world
    world.start(wal_file_bytes=2048)
    names = ("fsync", "disk", "memory")
    for name in names:
        world.put(name, name)
    world.settle()
    answers = []
    while not faulty.faulty.failed:
        answers += [world.append(name, 2, padding=200) for name in names]
        world.settle()
    calls: list[Callable[[], Pending[Any]]] = [
        lambda: world.append("fsync", 1),
        lambda: world.append("disk", 1),
        lambda: world.append("memory", 1),
        lambda: world.put("new", "fsync"),
        lambda: world.delete("fsync", seqs=[1]),
    ]
    for call in calls:
        with pytest.raises(DiskFullError, match="No space left"):
            _settled(world, call)
    acked = sum(answer.result().count for answer in answers if answer.error is None)
    assert sum(len(world.read(name).records) for name in names) == acked
    faulty.faulty.heal()
    world.advance(1100)
    for name in names:
        head = world.engine.topic(name).head
        answer = world.append(name, 2)
        world.settle()
        assert answer.result().first_seq == head + 1
    world.crash(CrashMode.DROP)
    world.judge()


def test_a_wal_file_that_cannot_be_made_makes_the_shard_read_only_until_it_can() -> None:
    """proves: G-IO-3"""
    faulty = Faulty(forever=True, fail_at=2, when=lambda operation, path: operation == "create" and "/wal-" in path)
    world = faulty.world
    world.start(wal_file_bytes=2048)
    for name in ("fsync", "disk"):
        world.put(name, name)
    world.settle()
    shard = world.engine.shards.all[0]
    acked = 0
    while not shard.read_only:
        answer = world.append("fsync", 2, padding=100)
        world.settle()
        acked += 2 if answer.error is None else 0
    assert isinstance(answer.error, ShardReadOnlyError)
    assert len(world.read("fsync").records) == acked
    for name in ("fsync", "disk"):
        with pytest.raises(ShardReadOnlyError):
            world.append(name, 2, padding=100)
    shard.sync(None)  # needs no file, and proves nothing
    shard.flush()
    world.settle()
    assert shard.read_only
    faulty.faulty.heal()
    world.advance(1100)
    answer = world.append("fsync", 1)
    world.settle()
    assert answer.result().first_seq == acked + 1
    assert world.engine.shards.all[0].read_only is False
    world.crash(CrashMode.DROP)
    world.judge()


@pytest.mark.parametrize("forever", [False, True])
def test_a_failed_sync_stops_the_shard_until_a_restart(*, forever: bool) -> None:
    """Never healed by a later success; what waits for it is neither acked nor shown; the other shard goes on.

    proves: G-IO-2, G-DUR-9
    """
    faulty = Faulty(
        fail_at=4, forever=forever, when=lambda operation, path: operation == "sync" and "shard-01/wal" in path
    )
    world = faulty.world
    world.start(wal_shards=2)
    for name in ("one", "two"):
        world.put(name, "fsync")
    world.settle()
    answers = []
    while not faulty.faulty.failed:
        answers.append(world.append("one", 1))
        world.settle()
    assert isinstance(answers[-1].error, ShardStoppedError)
    faulty.faulty.heal()
    for call in (
        lambda: world.append("one", 1),
        lambda: world.put("one", "disk"),
        lambda: world.delete("one", before=2),
    ):
        with pytest.raises(ShardStoppedError):
            call()
    other = world.append("two", 1)
    world.settle()
    assert other.result().first_seq == 1
    assert len(world.read("one").records) == len(answers) - 1
    world.crash(CrashMode.DROP)
    world.judge()
    again = world.append("one", 1)
    world.settle()
    assert again.error is None


def test_what_a_failed_sync_left_in_the_page_cache_is_shown_only_when_it_is_durable() -> None:
    """The next process reads it there, and a sync alone would not write it: those pages count as clean.

    proves: G-IO-2, G-DUR-5, G-DUR-1
    """

    def strikes(operation: str, path: str) -> bool:
        strikes = operation == "sync" and "/wal-" in path and armed
        if strikes:
            world.disk.open(path).forget_pending()
        return strikes

    armed = False
    faulty = Faulty(when=strikes)
    world = faulty.world
    world.start()
    world.put("fsync", "fsync")
    world.settle()
    world.append("fsync", 2)
    world.settle()
    armed = True
    failed = world.append("fsync", 3)
    world.settle()
    assert isinstance(failed.error, ShardStoppedError)
    world.kill()
    assert len(world.read("fsync").records) == 5
    behind = world.append("fsync", 1)
    world.settle()
    assert behind.result().first_seq == 6
    for mode in CrashMode:
        again = World(world.disk.crash(mode, 1), ledger=world.ledger.copy(), settings=world.settings).start()
        again.judge()


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("/data/topics", errno.EIO),
        ("/data/meta", errno.EIO),
        ("/cold/topics", errno.EIO),
        ("/cold/topics", errno.ENOSPC),
    ],
)
def test_background_work_that_fails_keeps_serving_and_is_tried_again(place: str, error: int) -> None:
    """Seal, checkpoint, flip and relocation.

    proves: G-IO-5, G-CKPT-3
    """
    faulty = Faulty(error=error, forever=True, when=lambda _, path: path.startswith(f"{place}/"))
    world = faulty.world
    world.start(segment_max_events=5, cold_dir="/cold", hot_retain_segments=1)
    world.put("fsync", "fsync")
    world.settle()
    for turn in range(4):
        answer = world.append("fsync", 6, tags=["a", None])
        world.settle()
        assert answer.error is None
        world.delete("fsync", seqs=[5 * turn + 1])
        world.checkpoint()
    world.advance(6000)
    assert faulty.faulty.failed
    faulty.check_reads()
    before = world.read("fsync")
    faulty.faulty.heal()
    world.advance(12_000)
    assert world.checkpoint()
    world.advance(2000)
    topic = world.engine.topic("fsync")
    assert [(segment.sealed, segment.cold) for segment in topic.segments] == [(True, True)] * 3 + [(True, False)]
    assert not any(segment.flips for segment in topic.segments)
    assert world.read("fsync") == before
    for mode in CrashMode:
        again = World(world.disk.crash(mode, 1), ledger=world.ledger.copy(), settings=world.settings).start()
        again.judge()
        assert again.read("fsync") == before


@pytest.mark.parametrize("place", ["/data/topics", "/data/meta"])
def test_records_are_refused_while_segments_or_checkpoints_have_no_space_and_deletes_are_not(place: str) -> None:
    """Otherwise what only the log and memory have would grow until no checkpoint could hold it.

    proves: G-IO-4, G-IO-5, G-CKPT-3, G-IO-15
    """
    faulty = Faulty(error=errno.ENOSPC, forever=True, when=lambda _, path: path.startswith(f"{place}/"))
    world = faulty.world
    world.start(segment_max_events=5)
    world.put("fsync", "fsync")
    world.settle()
    written = world.append("fsync", 12)
    world.settle()
    assert written.error is None
    world.checkpoint()
    assert faulty.faulty.failed
    with pytest.raises(DiskFullError, match="before_seq"):
        world.append("fsync", 1)
    deleted = world.delete("fsync", seqs=[2])
    world.settle()
    assert deleted.result().deleted == 1
    world.advance(3000)
    with pytest.raises(DiskFullError):
        world.append("fsync", 1)
    faulty.check_reads()
    faulty.faulty.heal()
    world.advance(2100)
    assert world.append("fsync", 1) is not None
    world.settle()
    assert world.checkpoint()
    for mode in CrashMode:
        again = World(world.disk.crash(mode, 1), ledger=world.ledger.copy(), settings=world.settings).start()
        again.judge()


def test_a_directory_sync_that_failed_once_is_made_up_for() -> None:
    """A topic's directory that could not be synced when it was made is synced before anything relies on it.

    proves: G-IO-5, G-SEG-1
    """
    faulty = Faulty(when=lambda operation, path: operation == "sync_dir" and path == "/data/topics")
    world = faulty.world
    world.start(segment_max_events=5)
    world.put("fsync", "fsync")
    world.settle()
    world.append("fsync", 6)
    world.advance(2100)
    assert faulty.faulty.failed
    assert world.checkpoint()
    world.crash(CrashMode.DROP)
    world.judge()


def test_a_file_into_which_nothing_could_be_written_is_no_damage() -> None:
    """Only its head got in, and the file behind it says that it was synced up to there: so it has to be.

    proves: G-IO-1, G-REC-5
    """
    faulty = Faulty(
        error=errno.ENOSPC, fail_at=4, forever=True, when=lambda _, path: path.endswith("wal-0000000000000002.log")
    )
    world = faulty.world
    world.start(wal_file_bytes=2048)
    world.put("fsync", "fsync")
    world.settle()
    while not faulty.faulty.failed:
        world.append("fsync", 2, padding=100)
        world.settle()
    faulty.faulty.heal()
    world.append("fsync", 1)
    world.settle()
    assert frames_behind_the_head(world.disk, "/data/wal/wal-0000000000000002.log") == []
    for mode in CrashMode:
        again = World(world.disk.crash(mode, 1), ledger=world.ledger.copy(), settings=world.settings).start()
        again.judge()


def frames_behind_the_head(disk: SimDisk, path: str) -> list[Frame]:
    """Return the other frames of a WAL file that has a head."""
    file = disk.open(path)
    content = file.pread(file.size(), 0)
    head = read_wal_head(content)
    assert head is not None
    return [frame for frame in scan_of(content, 2, head) if isinstance(frame, Frame)]


def test_records_acked_before_their_write_failed_are_a_hole_behind_a_restart() -> None:
    """`disk` acks when queued. They stay readable until the restart, and their seqs are not given out again.

    proves: G-IO-1, G-SEQ-2, G-TOMB-2, G-DUR-2
    """
    faulty = Faulty(fail_at=6, when=lambda operation, path: operation == "pwritev" and "/wal-" in path)
    world = faulty.world
    world.start()
    world.put("disk", "disk")
    world.settle()
    answers = []
    while not faulty.faulty.failed:
        answers.append(world.append("disk", 2))
        world.advance(20)
    assert all(answer.error is None for answer in answers)
    lost = answers[-1].result()
    topic = world.engine.topic("disk")
    assert len(world.read("disk").records) == topic.head == lost.last_seq
    assert world.engine.synced_seq(topic) == lost.first_seq - 1
    behind = world.append("disk", 2)
    world.advance(20)
    assert behind.result().first_seq == lost.last_seq + 1
    world.crash(CrashMode.DROP)
    world.judge()
    records = [record.seq for record in world.read("disk").records]
    assert records[-2:] == [behind.result().first_seq, behind.result().last_seq]
    first_hole = world.read("disk").tombstones[0]
    assert (first_hole.reason, first_hole.gap_from, first_hole.gap_to) == (Reason.CRASH, lost.first_seq, lost.last_seq)
