"""Failed and slow checkpoints are visible."""

import errno
import logging

import pytest

from driftq.engine.files.checkpoint_health import SLOW_MS, CheckpointRecord
from driftq.system.log_facts import FACTS
from driftq.testing import FaultyDisk, ManualClock, ServerRig


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, dict[str, object]]]:
    found = [
        (record.levelname, record.getMessage(), getattr(record, FACTS))
        for record in caplog.records
        if record.name.endswith("checkpoint_health")
    ]
    caplog.clear()
    return found


def test_failures_are_logged_ever_less_often_and_their_end_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    record = CheckpointRecord(clock)
    for _ in range(100):
        record.begin()
        clock.advance(1000)
        record.failed("no space")
    found = lines(caplog)
    assert [line["in_a_row"] for _, _, line in found] == [1, 2, 4, 8, 16, 32, 64]
    assert {(level, line["reason"]) for level, _, line in found} == {("WARNING", "no space")}
    assert (record.failures, record.age_ms) == (100, 100_000)
    record.begin()
    record.installed(10)
    assert [(level, message) for level, message, _ in lines(caplog)] == [("INFO", "checkpoints work again")]
    assert record.age_ms == 0


def test_a_slow_checkpoint_is_logged_and_a_quick_one_is_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    record = CheckpointRecord(clock)
    for took_ms in (SLOW_MS, SLOW_MS + 1):
        record.begin()
        clock.advance(took_ms)
        record.installed(10)
    assert lines(caplog) == [("INFO", "slow checkpoint", {"ms": SLOW_MS + 1, "bytes": 10})]


def test_a_checkpoint_that_cannot_be_written_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """row: F-CHECKPOINT-1"""
    broken = [False]
    rig = ServerRig(
        wrap=lambda disk: FaultyDisk(
            disk, error=errno.EIO, forever=True, when=lambda _, path: broken[0] and "snapshot" in path
        )
    )
    rig.ok("POST", "/v0/topics/t", {"records": [{"data": 1}]})
    broken[0] = True
    done = rig.server.engine.checkpointer.run()
    rig.run()
    assert done.result() is False
    ((level, message, line),) = lines(caplog)
    assert (level, line["in_a_row"]) == ("WARNING", 1)
    assert message.startswith("a checkpoint failed")
    assert "Input/output error" in str(line["reason"])
    broken[0] = False
    rig.close()
