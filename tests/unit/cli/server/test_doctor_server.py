"""The doctor of a running server: each answer that is not well is a finding that says what to do next."""

from typing import Any

import pytest
from msgspec.structs import replace

from driftq.cli.server.doctor_server import DoctorFinding, Refusal, check_no_vitals, check_ready, check_vitals
from driftq.model.vitals import CallerVitals, CheckpointVitals, ClockVitals, DiskVitals, PlaceVitals, Vitals

NOW_MS = 1_795_000_000_000
HOUR_MS = 3_600_000
READY: dict[str, Any] = {"status": "ready", "wal_replay_complete": True, "topics": 3}
WELL = Vitals(
    CheckpointVitals(30_000, 0, 1000, 60_000),
    DiskVitals(500 << 30, 1000 << 30, -5.0),
    NOW_MS - HOUR_MS,
    ClockVitals(NOW_MS, 0),
    CallerVitals(None, ["read", "write", "delete", "admin"], []),
    PlaceVitals(77, "/data", None, "/backups", 100, 20_000),
)


def found(check: str, findings: Any) -> DoctorFinding:
    (one,) = [finding for finding in findings if finding.check == check]
    assert one.advice or one.status == "ok", "what is not ok says what to do next"
    assert isinstance(one, DoctorFinding)
    return one


def vital(check: str, **changes: Any) -> DoctorFinding:
    return found(check, check_vitals(replace(WELL, **changes), NOW_MS))


def test_a_server_that_is_well_has_no_warning() -> None:
    findings = [*check_ready(READY), *check_vitals(WELL, NOW_MS)]
    assert {finding.status for finding in findings} == {"ok"}
    assert {finding.check for finding in findings} == {
        "log writer",
        "segments writer",
        "writes",
        "holes",
        "key",
        "checkpoint",
        "server disk",
        "disk forecast",
        "backup",
        "server clock",
        "server handles",
    }


@pytest.mark.parametrize(
    ("refusal", "check", "words"),
    [
        (Refusal(503, "wal_stopped", "the log is stopped: a sync failed"), "log writer", "restart the server"),
        (Refusal(503, "not_ready", "the server is starting: recovery is reading the log"), "ready", "wait"),
        (Refusal(503, "shutting_down", "the server is shutting down"), "ready", "start the server again"),
        (Refusal(500, "internal", "broken"), "ready", "log of the server"),
        (Refusal(401, "unauthorized", "this needs a key"), "key", "DRIFTQ_API_KEY"),
    ],
)
def test_a_server_that_is_not_ready_fails(refusal: Refusal, check: str, words: str) -> None:
    (finding,) = check_ready(refusal)
    assert (finding.check, finding.status, finding.found) == (check, "fail", refusal.message)
    assert words in finding.advice


@pytest.mark.parametrize(
    ("writer", "state", "status"),
    [
        ("log", {"state": "hung", "ms": 7000}, "fail"),
        ("segments", {"state": "hung", "ms": 7000}, "fail"),
        ("segments", {"state": "replaced"}, "warn"),
        ("log", {"state": "new"}, "fail"),
    ],
)
def test_a_writer_that_hangs_or_was_replaced_is_named(writer: str, state: dict[str, Any], status: str) -> None:
    findings = list(check_ready(READY | {"writers": {writer: state}}))
    finding = found(f"{writer} writer", findings)
    assert (finding.status, state["state"] in finding.found) == (status, True)
    assert sum(one.status != "ok" for one in findings) == 1


@pytest.mark.parametrize(("reason", "words"), [("disk_full", "make room"), ("internal", "check the disk")])
def test_a_server_that_refuses_writes_fails(reason: str, words: str) -> None:
    ready = READY | {"writable": False, "reason": reason, "message": "no space left"}
    finding = found("writes", check_ready(ready))
    assert (finding.status, finding.found) == ("fail", "refused: no space left")
    assert words in finding.advice


def test_holes_are_told_apart_and_say_when_nothing_may_be_lost() -> None:
    damage = found("holes", check_ready(READY | {"holes": {"corruption": 2, "crash": 1, "control": 0}}))
    assert (damage.status, damage.found) == ("warn", "2 by damage, 1 by crashes, 0 of control frames")
    assert "driftq verify" in damage.advice
    crash = found("holes", check_ready(READY | {"holes": {"corruption": 0, "crash": 3, "control": 0, "at_most": 2}}))
    assert crash.found.endswith("2 of them may be empty")
    assert "tombstone" in crash.advice


def test_checkpoints_that_do_not_come_are_found() -> None:
    late = CheckpointVitals(2 * HOUR_MS, 0, 5000, 60_000)
    assert vital("checkpoint", checkpoint=late).status == "warn"
    failing = vital("checkpoint", checkpoint=replace(late, failures=7))
    assert (failing.status, "a checkpoint failed" in failing.advice) == ("fail", True)
    assert vital("checkpoint", checkpoint=replace(late, wal_bytes=0)).status == "ok"  # there is nothing to save
    assert vital("checkpoint", checkpoint=replace(late, interval_ms=HOUR_MS)).status == "ok"  # as it is set


@pytest.mark.parametrize(
    ("free", "fill", "space", "forecast", "words"),
    [
        (500 << 30, None, "ok", "ok", "not known"),
        (500 << 30, 1000.0, "ok", "ok", "days"),
        (50 << 30, float(1 << 20), "ok", "warn", "full in 14 hours"),
        (2 << 30, float(1 << 20), "warn", "fail", "full in 34 minutes"),
        (1 << 20, 0.0, "warn", "ok", "did not shrink"),
    ],
)
def test_a_disk_that_will_be_full_is_foreseen(
    free: int, fill: float | None, space: str, forecast: str, words: str
) -> None:
    disk = DiskVitals(free, 900 << 30, fill)
    assert vital("server disk", disk=disk).status == space
    finding = vital("disk forecast", disk=disk)
    assert (finding.status, words in finding.found) == (forecast, True)


def test_a_disk_that_says_nothing_is_a_warning() -> None:
    assert vital("server disk", disk=None).status == "warn"


def test_backups_that_are_missing_or_old_are_a_warning() -> None:
    assert "driftq backup" in vital("backup", last_backup_ts=None).advice
    old = vital("backup", last_backup_ts=NOW_MS - 10 * 24 * HOUR_MS)
    assert (old.status, "10 days old" in old.found) == ("warn", True)


@pytest.mark.parametrize(
    ("clock", "words"),
    [
        (ClockVitals(NOW_MS, 90_000), "90000 ms ahead"),
        (ClockVitals(NOW_MS + 60_000, 0), "60 s ahead of"),
        (ClockVitals(NOW_MS - 60_000, 0), "60 s behind"),
    ],
)
def test_a_clock_that_is_off_is_a_warning(clock: ClockVitals, words: str) -> None:
    finding = vital("server clock", clock=clock)
    assert (finding.status, words in finding.found) == ("warn", True)


def test_file_handles_are_a_warning_only_when_few_are_left() -> None:
    assert WELL.place is not None
    assert vital("server handles", place=replace(WELL.place, file_handles=15_999)).status == "ok"
    assert vital("server handles", place=replace(WELL.place, file_handles=16_001)).status == "warn"
    assert vital("server handles", place=replace(WELL.place, file_handles=16_001, file_handles_max=0)).status == "ok"


def test_the_rights_of_the_key_are_told() -> None:
    finding = vital("key", caller=CallerVitals(2, ["read", "write"], ["orders."]))
    assert finding.found == "entry 2 of DRIFTQ_API_KEYS: read, write, names that start with orders."
    assert "admin" in finding.advice
    refused = check_no_vitals(Refusal(403, "forbidden", "this key does not have the required scope"))
    assert (refused.status, "were not checked" in refused.advice) == ("warn", True)
