"""What a server shows and does when its log stops, or a writer of it hangs (http-v0 §16, §17, §19.3)."""

import errno
import logging
from typing import Any

import pytest

from driftq.codec.write_body import make_rows
from driftq.config import Settings
from driftq.engine.read.topic_page import PageQuery
from driftq.engine.writer_watch import RestartReason
from driftq.errors import DriftQError, ShardStoppedError, ThrottledError, WalStoppedError
from driftq.model.topic_config import Durability, TopicConfig
from driftq.model.v0_answers import WriterState
from driftq.server import Server
from driftq.system.runtime import Pending, run
from driftq.testing import FaultyDisk, ManualClock, ManualRuntime, SimDisk

FSYNC = TopicConfig(durability=Durability.FSYNC)
DISK = TopicConfig(durability=Durability.DISK)
MEMORY = TopicConfig(durability=Durability.MEMORY)
MIB = 1 << 20
LOG, SEGMENTS = 1, 0
"""In which order a server asks for its writer processes."""


class Rig:
    """A server on a simulated disk and clock, with writers of its own."""

    def __init__(self, *, processes: bool = True, **settings: Any) -> None:
        self.failing: set[str] = set()
        disk = FaultyDisk(SimDisk(), error=errno.EIO, when=lambda operation, _: operation in self.failing)
        self.clock = ManualClock()
        self.runtime = ManualRuntime(self.clock, 1 if processes else None, writer_processes_on=disk)
        self.server = Server(Settings(data_dir="/data", **settings), disk, self.clock, self.runtime)
        self.writers = self.server.engine.writers

    def write(self, name: str, config: TopicConfig, records: int = 1) -> Pending[object]:
        """One write, and what became of it without any time passing."""
        appended = self.server.engine.append(name, make_rows([b"1"] * records), config=config)
        self.runtime.run_until_idle()
        return appended  # type: ignore[return-value]

    def read(self, name: str) -> int:
        """How many records a reader gets."""
        page = run(self.server.engine.read(name, PageQuery(0)))
        self.runtime.run_until_idle()
        return sum(len(part.rows) for part in page.result().slices)

    def write_bytes(self, name: str, size: int, config: TopicConfig) -> None:
        """One record of this many bytes, or the refusal."""
        data = b'"' + b"x" * (size - 2) + b'"'
        appended = self.server.engine.append(name, make_rows([data]), config=config)
        self.runtime.run_until_idle()
        assert appended.result().count == 1

    def write_until_refused(self, name: str, config: TopicConfig) -> tuple[int, ThrottledError]:
        """Records of 1 MiB: how many were taken, and the refusal."""
        for taken in range(200):
            try:
                self.write_bytes(name, MIB - 100, config)
            except ThrottledError as refused:
                return taken, refused
            self.runtime.advance(20)
        raise AssertionError("nothing was refused")

    def hang_segments(self, *, hang: bool = True) -> None:
        """What writes segments does nothing, whether it is a process or a thread; or it goes on."""
        for name in ("driftq-blocks", "driftq-seals"):
            self.runtime.hold(name) if hang else self.runtime.release(name)

    def kill_log(self) -> None:
        """The process that writes the log dies."""
        self.runtime.writer_processes[LOG].lose()
        self.runtime.run_until_idle()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


@pytest.mark.parametrize("processes", [True, False])
def test_a_failed_sync_is_logged_at_once_and_readiness_refuses_while_reads_go_on(
    caplog: pytest.LogCaptureFixture, *, processes: bool
) -> None:
    """proves: G-WRITER-1"""
    rig = Rig(processes=processes)
    assert rig.write("t", FSYNC).error is None
    assert not rig.server.figures().wal_stopped
    rig.failing.add("sync")
    in_flight = rig.write("t", FSYNC)
    assert isinstance(in_flight.error, ShardStoppedError)
    assert "not known whether this write is stored" in in_flight.error.message
    assert len(errors(caplog)) == 1
    assert "the log is stopped: a sync of the log failed" in errors(caplog)[0]
    with pytest.raises(WalStoppedError, match="a sync of the log failed"):
        rig.server.readiness()
    rig.server.check_ready()
    figures = rig.server.figures()
    assert (figures.ready, figures.wal_stopped) == (False, True)
    assert rig.read("t") == 1
    with pytest.raises(ShardStoppedError, match="nothing of this write is stored"):
        rig.write("t", FSYNC)


def test_a_writer_that_died_is_shown_before_anything_is_written(caplog: pytest.LogCaptureFixture) -> None:
    """proves: G-WRITER-1"""
    rig = Rig()
    assert rig.write("t", FSYNC).error is None
    rig.kill_log()
    assert errors(caplog) == [
        f"the log is stopped: {rig.writers.stopped}; writes are refused until a restart, reads are answered"
    ]
    with pytest.raises(WalStoppedError):
        rig.server.readiness()


def test_a_server_asks_to_be_ended_when_the_grace_period_is_over_and_once() -> None:
    """proves: G-WRITER-1"""
    rig = Rig()
    rig.kill_log()
    rig.runtime.advance(29_999)
    assert not rig.writers.ended.settled
    rig.runtime.advance(1)
    assert rig.writers.ended.result() is RestartReason.LOG_STOPPED
    rig.runtime.advance(60_000)
    assert rig.server.health().status == "ok", "an embedded server goes on"


def test_without_a_grace_period_the_end_comes_at_once() -> None:
    rig = Rig(wal_stop_grace_ms=0)
    rig.kill_log()
    assert rig.writers.ended.result() is RestartReason.LOG_STOPPED


def test_a_stop_of_a_server_whose_log_is_stopped_takes_no_checkpoint() -> None:
    rig = Rig()
    assert rig.write("t", FSYNC).error is None
    rig.kill_log()
    closing = rig.server.close()
    rig.runtime.advance(3000)
    assert closing.result() is False


def test_the_end_of_a_server_that_closes_is_not_asked_for_again() -> None:
    rig = Rig()
    rig.kill_log()
    rig.server.close()
    rig.runtime.advance(60_000)
    assert not rig.writers.ended.settled


def test_what_is_known_of_acked_records_is_counted_by_class() -> None:
    rig = Rig()
    for name, config in (("d", DISK), ("m", MEMORY), ("f", FSYNC)):
        assert rig.write(name, config, 3).error is None
    rig.runtime.advance(1000)
    assert rig.server.unconfirmed() == (0, 0)
    rig.runtime.hold("driftq-wal-0")
    assert rig.write("d", DISK, 5).error is None
    assert rig.write("m", MEMORY, 7).error is None
    assert rig.server.unconfirmed() == (5, 7)


def test_a_write_that_was_refused_by_a_stopped_log_can_be_told_from_one_in_flight() -> None:
    """The first is not stored, of the second nobody knows."""
    rig = Rig()
    assert rig.write("t", FSYNC).error is None
    rig.runtime.hold("driftq-wal-0")
    in_flight = rig.write("t", FSYNC)
    rig.kill_log()
    assert isinstance(in_flight.error, DriftQError)
    assert "not known whether this write is stored" in in_flight.error.message


@pytest.mark.parametrize("processes", [True, False])
def test_a_log_writer_that_hangs_is_shown_after_5_s_and_writes_are_refused_until_it_answers(
    caplog: pytest.LogCaptureFixture, *, processes: bool
) -> None:
    """proves: G-WRITER-2"""
    rig = Rig(processes=processes)
    assert rig.write("t", FSYNC).error is None
    rig.runtime.hold("driftq-wal-0")
    waiting = rig.write("t", FSYNC)
    rig.runtime.advance(4900)
    assert (rig.server.readiness().writers, warnings(caplog)) == (None, [])
    rig.runtime.advance(3000)
    assert warnings(caplog) == ["the log writer has not answered for 5 s"]
    ready = rig.server.readiness()
    assert ready.writers is not None
    assert ready.writers["log"].state == "hung"
    assert (ready.writable, ready.reason) == (False, "throttled")
    assert rig.server.figures().writers_hung["log"] >= 5000
    with pytest.raises(ThrottledError, match="has not answered for") as refused:
        rig.write("t", FSYNC)
    assert refused.value.retry_after_ms == 1000
    with pytest.raises(ThrottledError):
        rig.server.engine.delete_records("t", before_seq=1)
    assert (rig.read("t"), waiting.settled) == (1, False)
    rig.runtime.release("driftq-wal-0")
    rig.runtime.advance(1000)
    assert waiting.error is None
    assert warnings(caplog)[1:] == ["the log writer answers again after 6 s"]
    assert rig.write("t", FSYNC).error is None
    assert (rig.server.readiness().writers, rig.server.readiness().writable) == (None, True)


def test_a_disk_write_beyond_its_reservation_does_not_wait_for_ever_for_a_hung_log_writer() -> None:
    """proves: G-WRITER-2"""
    rig = Rig()
    assert rig.write("t", DISK).error is None
    rig.runtime.advance(1000)
    rig.runtime.hold("driftq-wal-0")
    writes = [rig.write("t", DISK) for _ in range(300)]
    waiting = [write for write in writes if not write.settled]
    assert waiting
    rig.runtime.advance(59_000)
    assert not any(write.settled for write in waiting)
    with pytest.raises(ThrottledError):
        rig.write("t", DISK)
    rig.runtime.advance(3000)
    assert {type(write.error) for write in waiting} == {ShardStoppedError}
    assert rig.writers.ended.result() is RestartReason.LOG_HUNG, "there is no grace period after a hang"
    assert rig.server.unconfirmed().disk == len(writes) - len(waiting)


def test_a_stop_does_not_wait_for_a_log_writer_that_was_given_up() -> None:
    rig = Rig(writer_hang_limit_ms=10_000)
    rig.runtime.hold("driftq-wal-0")
    rig.write("t", FSYNC)
    rig.runtime.advance(12_000)
    assert rig.writers.ended.result() is RestartReason.LOG_HUNG
    closing = rig.server.close()
    rig.runtime.advance(3000)
    assert closing.result() is False


def test_a_log_that_was_given_up_stays_stopped_when_its_writer_answers_after_all() -> None:
    rig = Rig(writer_hang_limit_ms=10_000)
    assert rig.write("f", FSYNC, 3).error is None
    rig.runtime.hold("driftq-wal-0")
    in_flight = rig.write("f", FSYNC)
    rig.runtime.advance(12_000)
    rig.runtime.release("driftq-wal-0")
    rig.runtime.advance(1000)
    assert isinstance(in_flight.error, ShardStoppedError)
    assert rig.read("f") == 3
    with pytest.raises(WalStoppedError):
        rig.server.readiness()


def test_a_suspend_of_the_machine_is_not_a_hang(caplog: pytest.LogCaptureFixture) -> None:
    """The answer of a writer is there when the machine wakes up; it has not been read yet."""
    rig = Rig()
    rig.runtime.hold("driftq-wal-0")
    waiting = rig.write("t", FSYNC)
    rig.runtime.advance(1500)
    rig.clock.advance_ns(3600 * 1_000_000_000)
    rig.runtime.run_until_idle()
    assert (warnings(caplog), rig.writers.states()) == ([], None)
    rig.runtime.release("driftq-wal-0")
    rig.runtime.run_until_idle()
    assert waiting.error is None


def test_writers_without_work_are_never_hung(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    assert rig.write("t", FSYNC).error is None
    rig.runtime.advance(600_000)
    assert (warnings(caplog), rig.writers.states()) == ([], None)


def test_a_writer_of_segments_that_hangs_is_killed_and_replaced_and_nothing_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """proves: G-WRITER-3"""
    rig = Rig(segment_max_events=10)
    assert rig.write("t", FSYNC, 25).error is None
    rig.hang_segments()
    for _ in range(4):
        assert rig.write("t", FSYNC, 25).error is None
    rig.runtime.advance(8000)
    assert "the segments writer has not answered for 5 s" in warnings(caplog)
    states = rig.server.readiness().writers
    assert states is not None
    assert states["segments"].state == "hung"
    assert rig.write("t", FSYNC, 25).error is None, "writes are taken"
    rig.runtime.advance(54_000)
    assert errors(caplog) == ["the segments writer has not answered for 60 s and is killed"]
    assert rig.server.readiness().writers == {"segments": WriterState("replaced")}
    assert rig.server.figures().writer_replaced
    rig.hang_segments(hang=False)
    rig.runtime.advance(10_000)
    assert rig.server.engine.unsealed.size == 0
    assert rig.read("t") == 150
    closing = rig.server.close()
    rig.runtime.advance(3000)
    assert closing.result() is True


def test_a_checkpoint_that_waited_for_a_hung_writer_of_segments_copies_little_when_threads_replace_it() -> None:
    """A copy is in memory more than once, beside the blocks themselves. proves: G-WRITER-4"""
    rig = Rig(cache_bytes=MIB, checkpoint_wal_bytes=32 * MIB)
    rig.write_bytes("t", 100, DISK)
    rig.runtime.writer_processes[SEGMENTS].held = True
    rig.write_until_refused("t", DISK)
    checkpointer = rig.server.engine.checkpointer
    before = checkpointer.bytes_written
    most = 0
    for _ in range(700):
        rig.runtime.advance(100)
        most = max(most, checkpointer.bytes_written)
    assert rig.server.figures().writer_replaced
    assert before < most < 5 * MIB


def test_a_writer_of_segments_that_died_is_logged_and_shown_as_replaced(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.runtime.writer_processes[SEGMENTS].lose()
    rig.runtime.run_until_idle()
    assert [text for text in warnings(caplog) if "the process that writes segments has ended" in text]
    assert rig.server.readiness().writers == {"segments": WriterState("replaced")}


def test_records_are_refused_while_64_mib_wait_for_the_writer_of_segments_and_deletes_are_not() -> None:
    """proves: G-WRITER-4"""
    rig = Rig(cache_bytes=MIB)
    rig.hang_segments()
    taken, refused = rig.write_until_refused("t", DISK)
    assert 60 <= taken <= 70
    assert refused.detail == {"limit": "unsealed_bytes", "max": 64 * MIB}
    assert refused.retry_after_ms == 1000
    with pytest.raises(ThrottledError):
        rig.write("new", DISK)
    assert rig.write("e", TopicConfig(durability=Durability.EPHEMERAL)).error is None
    deleted = rig.server.engine.delete_records("t", before_seq=5)
    rig.runtime.run_until_idle()
    assert deleted.result().deleted
    rig.hang_segments(hang=False)
    rig.runtime.advance(2000)
    rig.write_bytes("t", MIB - 100, DISK)


def test_log_that_no_checkpoint_can_free_is_bounded_while_the_writer_of_segments_hangs() -> None:
    """Records that a cap removes at once need no memory, but the log keeps them. proves: G-WRITER-4"""
    rig = Rig(cache_bytes=MIB, checkpoint_wal_bytes=MIB, segment_max_events=1)
    capped = TopicConfig(durability=Durability.DISK, cap_records=2)
    rig.hang_segments()
    rig.write_bytes("t", MIB - 100, capped)
    rig.write_bytes("u", MIB - 100, DISK)
    rig.runtime.advance(8000)
    taken, refused = rig.write_until_refused("t", capped)
    assert 55 <= taken <= 70
    assert refused.detail == {"limit": "unsealed_bytes", "max": 64 * MIB}
    rig.hang_segments(hang=False)
    rig.runtime.advance(8000)
    rig.write_bytes("t", MIB - 100, capped)


def test_a_commit_larger_than_the_limit_is_refused_only_while_the_writer_of_segments_hangs() -> None:
    rig = Rig(cache_bytes=MIB)
    unsealed = rig.server.engine.unsealed
    unsealed.check(1000 * MIB)
    rig.hang_segments()
    rig.write_bytes("t", MIB - 100, DISK)
    rig.runtime.advance(8000)
    unsealed.check(60 * MIB)
    with pytest.raises(ThrottledError):
        unsealed.check(64 * MIB)
