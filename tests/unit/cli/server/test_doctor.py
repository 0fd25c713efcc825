"""The doctor: what is wrong is a warning or a failure, with advice."""

import json
import resource
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from driftq.cli.exits import CommandError
from driftq.cli.server import doctor
from driftq.system.disk import OsDisk
from driftq.system.hang_guard import Patience
from driftq.testing.manual_clock import ManualClock

Examine = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def examine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Examine:
    """Return what `driftq doctor --json` reports of the checks with these names. No server runs."""

    def examined(*checks: str, data_dir: Path = tmp_path, cold_dir: Path | None = None) -> list[dict[str, Any]]:
        capsys.readouterr()
        with suppress(CommandError):
            doctor.doctor(data_dir=data_dir, cold_dir=cold_dir, url="http://127.0.0.1:1", as_json=True)
        return [finding for finding in json.loads(capsys.readouterr().out) if finding["check"] in checks]

    return examined


def test_a_full_disk_is_a_warning(examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type(shutil.disk_usage(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1 << 40, 1 << 40, 1 << 20))
    space, probe = examine("disk space", "fsync")
    assert (space["check"], space["status"]) == ("disk space", "warn")
    assert (probe["check"], "p50" in probe["found"]) == ("fsync", True)


def test_a_place_where_nothing_can_be_written_is_a_failure(examine: Examine) -> None:
    (found,) = examine("fsync", data_dir=Path("/proc/nowhere"))
    assert found["status"] == "fail"


def test_a_clock_before_the_program_is_a_failure(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Early(ManualClock):
        def monotonic_ns(self) -> int:
            self.advance(1)
            return super().monotonic_ns()

    monkeypatch.setattr(doctor, "SystemClock", lambda: Early())
    (found,) = examine("clock")
    assert (found["status"], bool(found["advice"])) == ("fail", True)


def test_few_file_handles_are_a_warning(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    (found,) = examine("file handles")
    assert (found["status"], "ulimit" in found["advice"]) == ("warn", True)
    for hard in (20_000, resource.RLIM_INFINITY):
        monkeypatch.setattr(resource, "getrlimit", lambda _, hard=hard: (256, hard))
        (found,) = examine("file handles")
        assert found["status"] == "ok"


@pytest.mark.parametrize(
    ("says", "status"),
    [('openjdk version "17.0.9" 2023-10-17', "ok"), ('java version "1.8.0_292"', "warn"), ("what?", "warn")],
)
def test_java_is_asked_how_old_it_is(
    says: str, status: str, examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n", encoding="utf-8")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (found,) = examine("java")
    assert found["status"] == status


def test_no_java_is_a_warning(examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (found,) = examine("java")
    assert (found["status"], "Java 17" in found["advice"]) == ("warn", True)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    (found,) = examine("java")
    assert found["found"] == "none"


def test_files_of_segments_that_were_given_up_are_listed(examine: Examine, tmp_path: Path) -> None:
    """proves: G-SEG-9; row: F-COLD-5"""
    data, cold = tmp_path / "data", tmp_path / "cold"
    (found,) = examine("lost files", data_dir=data, cold_dir=cold)
    assert found["status"] == "ok"
    for root, suffix in ((data, "data"), (cold, "parquet")):
        directory = root / "lost" / "topics" / "0000000A"
        directory.mkdir(parents=True)
        (directory / f"seg-0000000000000017.{suffix}").touch()
    hot, moved = examine("lost files", data_dir=data, cold_dir=cold)
    assert (hot["check"], hot["status"], hot["advice"]) == ("lost files", "warn", doctor.ADVICE)
    assert hot["found"] == f"topic id 10, from seq 17: {data}/lost/topics/0000000A/seg-0000000000000017.data"
    assert f"{cold}/lost/topics/0000000A/seg-0000000000000017.parquet" in moved["found"]


def test_a_cold_directory_that_hangs_is_a_warning(
    examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """proves: G-IO-12"""
    hang = threading.Event()
    monkeypatch.setattr(doctor, "Patience", lambda: Patience(0.05))
    monkeypatch.setattr(OsDisk, "names", lambda _, __: hang.wait())
    monkeypatch.setattr(OsDisk, "exists", lambda _, __: hang.wait())
    (found,) = examine("lost files", data_dir=tmp_path, cold_dir=tmp_path / "cold")
    hang.set()
    assert found["status"] == "warn"
    assert found["found"] == f"{tmp_path / 'cold'}: the file system does not answer"
