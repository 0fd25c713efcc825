"""The tables of lineage without Spark: what batches bring, and runs that are asked about."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from driftq.client import Client, NotFoundError
from driftq.pipeline.jobs.lineage import Lineage
from driftq.pipeline.jobs.run_fold import RunState, Try, dump
from driftq.pipeline.jobs.run_tables import RUNS
from driftq.pipeline.lake.lake import Lake

LETTER = {"topic": "dlq.work", "group": "g", "attempts": 1, "last_error": "boom", "routed_at_ms": 90}


class FakeServer:
    """Answers `GET /v1/runs/…` with states that a test sets."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.asked: list[str] = []

    def request(self, method: str, path: str, *, query: Any = None) -> Any:
        run_id = path.rpartition("/")[2]
        self.asked.append(run_id)
        if run_id not in self.states:
            raise NotFoundError(404, "not_found", "no such run")
        group = {"group": "g", "state": self.states[run_id], "attempts": 1, "last_error": ""}
        step = {"topic": "work", "partition": 0, "offset": 0, "groups": [group]}
        if group["state"] == "dead":
            step["dlq"] = [{**LETTER, "group": "other", "routed_at_ms": 70}, LETTER]
        steps = [step]
        return SimpleNamespace(content=msgspec.json.encode({"run_id": run_id, "steps": steps}))


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture
def lineage(lake: Lake, server: FakeServer) -> Lineage:
    return Lineage(lake, cast("Client", server))


def changed(*runs: str) -> list[Any]:
    return [
        {"tenant_id": "", "run_id": run, "state": dump(RunState(run, "", [Try("a", "", "v1:work", 0, 0, 5, False)]))}
        for run in runs
    ]


def statuses(lake: Lake) -> dict[str, str]:
    table = lake.table("runs", RUNS).read(["run_id", "status"]).to_pydict()
    return dict(zip(table["run_id"], table["status"], strict=True))


def test_a_run_of_which_no_batch_brings_anything_is_told_when_it_is_done(
    lake: Lake, server: FakeServer, lineage: Lineage
) -> None:
    server.states = {"one": "leased", "other": "leased"}
    lineage.take(changed("one", "other"))
    assert statuses(lake) == {"one": "running", "other": "running"}
    server.states["one"] = "done"
    assert lineage.ask_about_open_runs() == 1
    assert statuses(lake) == {"one": "done", "other": "running"}


def test_a_run_that_died_is_told_with_the_time_of_a_letter_that_was_not_read(
    lake: Lake, server: FakeServer, lineage: Lineage
) -> None:
    server.states = {"early": "dead", "late": "leased"}
    lineage.take(changed("early", "late"))
    server.states["late"] = "dead"
    assert lineage.ask_about_open_runs() == 0
    rows = lake.table("runs", RUNS).read(["run_id", "status", "latency_ms"]).to_pylist()
    assert sorted(rows, key=str) == [
        {"run_id": "early", "status": "dead", "latency_ms": 85},
        {"run_id": "late", "status": "dead", "latency_ms": 85},
    ]


def test_a_run_that_is_closed_is_not_asked_about_again(server: FakeServer, lineage: Lineage) -> None:
    server.states = {"one": "done"}
    lineage.take(changed("one"))
    server.asked.clear()
    assert lineage.ask_about_open_runs() == 0
    assert server.asked == []


def test_open_runs_take_turns(server: FakeServer, lineage: Lineage) -> None:
    server.states = dict.fromkeys("abc", "leased")
    lineage.take(changed("a", "b", "c"))
    server.asked.clear()
    for _ in range(2):
        lineage.ask_about_open_runs(at_most=2)
    assert server.asked == ["a", "b", "c", "a"]


def test_a_batch_that_comes_again_leaves_the_same_rows(lake: Lake, server: FakeServer, lineage: Lineage) -> None:
    server.states = {"one": "done"}
    for _ in range(2):
        lineage.take(changed("one"))
    assert statuses(lake) == {"one": "done"}


def test_a_run_that_the_server_does_not_know_is_unknown(lake: Lake, lineage: Lineage) -> None:
    lineage.take(changed("one"))
    assert statuses(lake) == {"one": "unknown"}
