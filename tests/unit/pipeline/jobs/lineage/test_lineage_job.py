"""The tables of lineage without Spark: what batches bring, and runs that are asked about."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs.lineage.lineage_job import Lineage
from driftq.pipeline.jobs.lineage.run_fold import RunState, Try, dump
from driftq.pipeline.jobs.lineage.run_tables import RUNS
from driftq.pipeline.lake.delta_tables import Lake
from driftq.pipeline.server_connection import AnswerError, Wire

LETTER = {"topic": "dlq.work", "group": "g", "attempts": 1, "last_error": "boom", "routed_at_ms": 90}


class FakeServer:
    """Answers `GET /v1/runs/…` with states that a test sets, or is away."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.asked: list[str] = []
        self.refuses = False
        self.away_after: int | None = None
        """How many more questions it answers before it is away."""

    def get(self, path: str) -> dict[str, Any]:
        run_id = path.rpartition("/")[2]
        if self.refuses:
            raise AnswerError(403, "forbidden", "not for this key")
        if self.away_after is not None:
            if not self.away_after:
                raise PipelineError("the server does not answer")
            self.away_after -= 1
        self.asked.append(run_id)
        if run_id not in self.states:
            raise AnswerError(404, "not_found", "no such run")
        group = {"group": "g", "state": self.states[run_id], "attempts": 1, "last_error": ""}
        step: dict[str, Any] = {"topic": "work", "partition": 0, "offset": 0, "groups": [group]}
        if group["state"] == "dead":
            step["dlq"] = [{**LETTER, "group": "other", "routed_at_ms": 70}, LETTER]
        return {"run_id": run_id, "steps": [step]}


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture
def lineage(lake: Lake, server: FakeServer) -> Lineage:
    return Lineage(lake, cast("Wire", server), cast("Wire", server))


def changed(*runs: str) -> list[Any]:
    return [
        {"tenant_id": "", "run_id": run, "state": dump(RunState(run, "", [Try("a", "", "@work", 0, 0, 5, False)]))}
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


def test_while_a_query_goes_on_a_server_that_is_away_is_asked_again_later(
    lake: Lake, server: FakeServer, lineage: Lineage
) -> None:
    server.states = dict.fromkeys("abc", "leased")
    lineage.take(changed("a", "b", "c"))
    server.states = dict.fromkeys("abc", "done")
    server.asked.clear()
    server.away_after = 1
    lineage.look()
    assert statuses(lake) == dict.fromkeys("abc", "running")
    server.away_after = None
    lineage.look()
    assert server.asked == ["a", "a", "b", "c"]
    assert statuses(lake) == dict.fromkeys("abc", "done")


def test_while_a_batch_is_written_nobody_waits_for_it_to_ask(server: FakeServer, lineage: Lineage) -> None:
    server.states = {"one": "leased"}
    lineage.take(changed("one"))
    asked: list[int] = []

    def answer_and_look(path: str) -> dict[str, Any]:
        lineage.look()
        asked.append(len(server.asked))
        return FakeServer.get(server, path)

    server.asked.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "get", answer_and_look)
        lineage.take(changed("one"))
    assert asked == [0]


def test_a_server_that_refuses_is_no_server_that_is_away(server: FakeServer, lineage: Lineage) -> None:
    server.states = {"one": "leased"}
    lineage.take(changed("one"))
    server.refuses = True
    with pytest.raises(AnswerError, match="not for this key"):
        lineage.look()


@pytest.fixture
def nobody() -> Iterator[Wire]:
    """A server that is away, asked by who does not wait."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and nobody listens
        with Wire(f"http://127.0.0.1:{bound.getsockname()[1]}", None, patience_s=0) as wire:
            yield wire


def test_batches_and_the_last_question_wait_for_a_server_that_is_away(
    lake: Lake, server: FakeServer, nobody: Wire
) -> None:
    lineage = Lineage(lake, cast("Wire", server), nobody)
    server.states = {"one": "leased"}
    lineage.take(changed("one"))
    assert lineage.ask_about_open_runs() == 1
    server.states = {"one": "done"}
    lineage.look()
    assert lineage.ask_about_open_runs(waits=False) == 1
    assert statuses(lake) == {"one": "running"}
    assert lineage.ask_about_open_runs() == 0
    assert statuses(lake) == {"one": "done"}


def test_a_run_is_asked_about_by_names_that_a_path_can_have(lake: Lake) -> None:
    asked: list[str] = []

    class Listening(FakeServer):
        def get(self, path: str) -> dict[str, Any]:
            asked.append(path)
            return {"steps": []}

    wire = cast("Wire", Listening())
    state = dump(RunState("a/b c", "x&y", [Try("a", "", "@work", 0, 0, 5, False)]))
    row: Any = {"tenant_id": "x&y", "run_id": "a/b c", "state": state}
    Lineage(lake, wire, wire).take([row])
    assert asked == ["/v1/runs/a%2Fb%20c?tenant_id=x%26y"]
