"""`driftq pipeline` without Spark: what it refuses, and what it knows of runs."""

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from msgspec import json, structs

from driftq.cli.commands import make_app
from driftq.cli.data.pipeline_run import outages, prepare
from driftq.cli.exits import ExitCode
from driftq.cli.lazy_groups import run
from driftq.pipeline.runs.job import PLACES, Progress
from driftq.pipeline.runs.run_records import RunRecord, RunRecords


class Cli:
    """Runs commands here."""

    def __init__(self, captured: pytest.CaptureFixture[bytes]) -> None:
        self._captured = captured

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = run(make_app(), ["pipeline", *arguments])
        shown = self._captured.readouterr()
        return code, shown.out.decode(), shown.err.decode()


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    return Cli(capfdbinary)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRecords:
    monkeypatch.setenv("DRIFTQ_PIPELINE_DIR", str(tmp_path))
    return RunRecords()


@pytest.fixture
def record(runs: RunRecords) -> RunRecord:
    begun = runs.begin("archive", {"lake": "here"}, "http://server")
    return runs.write(begun, state="running", progress=Progress(rows=7, rows_per_s=3.5, lag=2, batches=1))


@pytest.mark.parametrize("missing", ["pyspark", "deltalake"])
@pytest.mark.parametrize(
    "arguments",
    [("run", "archive", "--topics", "a", "--lake", "b"), ("verify", "archive", "--lake", "b"), ("warm",)],
    ids=lambda arguments: arguments[0],
)
def test_without_the_extra_one_line_says_how_to_install_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, missing: str, arguments: tuple[str, ...]
) -> None:
    found = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == missing else found(name, package)

    monkeypatch.setattr("driftq.cli.data.pipeline.find_spec", find_spec)
    code, _, told = cli(*arguments)
    assert code == 1
    assert told == f"driftq: the data pipeline needs {missing}; install it with `pip install 'driftq[spark]'`\n"


def test_the_help_names_every_job_and_each_job_its_flags(cli: Cli) -> None:
    code, told, _ = cli("run", "--help")
    assert code == 0
    assert all(name in told for name in PLACES)
    code, told, _ = cli("run", "archive", "--help")
    assert code == 0
    assert all(flag in told for flag in ("--master", "--topics", "--lake", "--once"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("run", "archive", "--nonsense"), "--lake"),
        (("run", "--topics", "a", "archive"), "name the pipeline before --topics"),
        (("run", "archive", "--topics", "a", "--lake", "b", "--max-records", "0"), "--max-records"),
        (("run", "archive", "--topics", "a", "--lake", "b", "--conf", "nonsense"), "KEY=VALUE"),
        (("verify", "lineage", "--lake", "b"), "verify archive"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(cli: Cli, runs: RunRecords, arguments: tuple[str, ...], told: str) -> None:
    code, _, said = cli(*arguments)
    assert code == 2
    assert told in said
    assert said.count("\n") == 1


def test_an_unknown_job_is_refused_with_those_there_are(cli: Cli, runs: RunRecords) -> None:
    code, _, told = cli("run", "nothing")
    assert (code, told.count("\n")) == (5, 1)
    assert "archive" in told


@pytest.mark.parametrize("command", ["status", "stop"])
def test_an_unknown_run_has_a_code_of_its_own(cli: Cli, runs: RunRecords, command: str) -> None:
    code, _, told = cli(command, "nothing")
    assert (code, told.count("\n")) == (5, 1)


def test_a_run_that_fails_ends_its_lines_of_json_with_why(cli: Cli, runs: RunRecords) -> None:
    code, shown, told = cli("run", "route", "--topics", "a", "--to", "b", "--json")
    last = json.decode(shown.splitlines()[-1])
    assert (code, last["state"], last["pipeline"]) == (1, "failed", "route")
    assert told == f"driftq: {last['error']}\n"


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("archive", ["--topics", "a", "--lake", "b"]),
        ("replay", ["--topic", "a", "--to", "b"]),
        ("backfill", ["--topic", "a", "--to", "b"]),
        ("redrive", ["--topics", "a", "--where", "true"]),
        ("mine.py", []),
    ],
)
def test_every_job_can_be_run_again_and_again(name: str, flags: list[str]) -> None:
    prepared = prepare(name, flags, again=True)
    assert getattr(prepared.options, "once", True) is True


def test_an_outage_is_told_once_and_so_is_its_end(record: RunRecord, capsys: pytest.CaptureFixture[str]) -> None:
    tell = outages(5.0)
    away = structs.replace(record, error="no server answers")
    for told in (record, away, away, record):
        tell(told)
    assert capsys.readouterr().err == "driftq: no server answers; retry in 5 s\ndriftq: the server is back\n"


def test_a_run_is_listed_and_shown_with_the_same_fields(cli: Cli, record: RunRecord) -> None:
    code, told, _ = cli("ls", "--json")
    (row,) = json.decode(told)
    assert code == 0
    assert (row["id"], row["rows"], row["rows_per_s"], row["lag"]) == (record.id, 7, 3.5, 2)
    _, table, _ = cli("ls")
    assert table.split()[: len(row)] == list(row)
    _, told, _ = cli("status", record.id, "--json")
    assert json.decode(told)["options"] == {"lake": "here"}


def test_what_ended_is_listed_only_with_all(cli: Cli, runs: RunRecords, record: RunRecord) -> None:
    runs.end(record, "failed", "no such topic")
    assert json.decode(cli("ls", "--json")[1]) == []
    (row,) = json.decode(cli("ls", "--all", "--json")[1])
    assert (row["state"], row["error"]) == ("failed", "no such topic")


def test_stop_asks_and_says_when_it_still_works(cli: Cli, runs: RunRecords, record: RunRecord) -> None:
    code, _, told = cli("stop", record.id, "--wait", "0")
    assert code == 1
    assert "is still running" in told
    assert runs.asked_to_stop(record)


def test_stop_by_name_means_the_run_that_works(cli: Cli, runs: RunRecords, record: RunRecord) -> None:
    runs.end(runs.begin("archive", {}, "http://server"), "done")
    _, told, _ = cli("stop", "archive", "--wait", "0", "--json")
    assert json.decode(told)["id"] == record.id
    assert runs.asked_to_stop(record)


def test_to_stop_what_has_ended_is_no_error(cli: Cli, runs: RunRecords, record: RunRecord) -> None:
    runs.end(record, "done")
    assert cli("stop", "archive")[0] == 0


def test_a_lake_without_an_archive_is_told(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIFTQ_URL", "http://127.0.0.1:1")
    code, _, told = cli("verify", "archive", "--lake", str(tmp_path))
    assert code == 5
    assert "run archive" in told


def test_a_cluster_that_is_not_there_cannot_be_stopped(cli: Cli, tmp_path: Path) -> None:
    code, _, said = cli("cluster", "down", "--directory", str(tmp_path))
    assert (code, str(tmp_path) in said, "--directory of `cluster up`" in said) == (ExitCode.ABSENT, True, True)


def test_status_and_stop_take_the_address_that_other_commands_take(cli: Cli, runs: RunRecords) -> None:
    record = runs.end(runs.begin("archive", {}, "http://127.0.0.1:1"), "done")
    for command in ("status", "stop"):
        code, out, _ = cli(command, record.id, "--url", "http://127.0.0.1:1", "--json")
        assert (code, json.decode(out)["state"]) == (0, "done")
