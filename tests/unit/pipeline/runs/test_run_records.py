"""Runs as a machine remembers them: files in a directory of their own."""

import os
from pathlib import Path

import pytest
from msgspec import structs

from driftq.pipeline.errors import AbsentError, PipelineError
from driftq.pipeline.runs.job import Progress
from driftq.pipeline.runs.run_records import RunRecords, state_directory
from driftq.testing import ManualClock


@pytest.fixture
def runs(tmp_path: Path) -> RunRecords:
    return RunRecords(tmp_path / "runs", clock=ManualClock())


def test_a_run_is_found_by_id_by_its_beginning_and_by_pipeline(runs: RunRecords) -> None:
    record = runs.begin("archive", {"lake": "here"}, "http://server")
    for wanted in (record.id, record.id[:4], "archive"):
        assert runs.find(wanted).id == record.id


def test_the_newest_run_of_a_pipeline_is_meant(tmp_path: Path) -> None:
    clock = ManualClock()
    runs = RunRecords(tmp_path, clock=clock)
    for _ in range(2):
        clock.advance(5)
        newest = runs.end(runs.begin("jobs/mine.py", {}, "http://server"), "done")
    assert runs.find("mine.py").id == newest.id
    assert runs.all()[0].id == newest.id


def test_an_open_run_of_a_pipeline_is_meant_before_a_newer_one_that_ended(tmp_path: Path) -> None:
    clock = ManualClock()
    runs = RunRecords(tmp_path, clock=clock)
    still_open = runs.begin("archive", {}, "http://server")
    clock.advance(5)
    runs.end(runs.begin("archive", {}, "http://server"), "done")
    assert runs.find("archive").id == still_open.id


def test_which_of_several_open_runs_is_meant_has_to_be_said(runs: RunRecords) -> None:
    ids = {runs.begin("archive", {}, "http://server").id for _ in range(2)}
    with pytest.raises(PipelineError, match="give one of these ids") as told:
        runs.find("archive")
    assert all(one in str(told.value) for one in ids)


def test_an_unknown_run_is_refused_with_what_to_do(runs: RunRecords) -> None:
    with pytest.raises(AbsentError, match="pipeline ls"):
        runs.find("nothing")


def test_progress_and_end_are_noted(runs: RunRecords) -> None:
    record = runs.begin("archive", {}, "http://server")
    runs.write(record, state="running", progress=Progress(rows=5))
    assert runs.find(record.id).progress.rows == 5
    runs.end(record, "failed", "no such topic")
    found = runs.find(record.id)
    assert (found.state, found.error) == ("failed", "no such topic")


def test_a_run_whose_process_is_gone_is_lost(runs: RunRecords) -> None:
    record = runs.begin("archive", {}, "http://server")
    runs.write(structs.replace(record, born=record.born - 1))  # another process has its id
    assert runs.find(record.id).state == "lost"


def test_a_stop_is_asked_for_and_forgotten_when_it_is_over(runs: RunRecords) -> None:
    record = runs.begin("archive", {}, "http://server")
    assert not runs.asked_to_stop(record)
    runs.ask_to_stop(record)
    assert runs.asked_to_stop(record)
    runs.end(record, "stopped")
    assert not runs.asked_to_stop(record)


def test_a_checkpoint_is_held_by_a_run_that_lives(runs: RunRecords) -> None:
    record = runs.begin("archive", {}, "http://server")
    runs.write(record, checkpoints=["/checkpoint"])
    holder = runs.holder("/checkpoint")
    assert holder is not None
    assert holder.pid == os.getpid()
    runs.end(record, "done")
    assert runs.holder("/elsewhere") is None


def test_old_runs_are_forgotten_and_open_ones_never(tmp_path: Path) -> None:
    clock = ManualClock()
    runs = RunRecords(tmp_path, clock=clock)
    still_open = runs.begin("archive", {}, "http://server")
    for _ in range(105):
        clock.advance(1)
        runs.end(runs.begin("archive", {}, "http://server"), "done")
    kept = runs.all()
    assert len(kept) <= 102
    assert still_open.id in {one.id for one in kept}


def test_a_file_that_is_no_record_is_passed_over(runs: RunRecords) -> None:
    record = runs.begin("archive", {}, "http://server")
    (runs.directory / "odd.json").write_text("{", encoding="utf-8")
    assert [one.id for one in runs.all()] == [record.id]


def test_the_directory_of_runs_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIFTQ_PIPELINE_DIR", "/somewhere")
    assert state_directory() == Path("/somewhere")
    monkeypatch.delenv("DRIFTQ_PIPELINE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert state_directory() == Path("/state/driftq/pipelines")
