"""`bench.report`: what a command prints and returns when bars are reached, missed, or cannot be measured."""

import json
from collections.abc import Mapping

import pytest

from bench.report import Result, Workload, report


def _run(monkeypatch: pytest.MonkeyPatch, workloads: Mapping[str, Workload], *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["bench", *arguments])
    return report(workloads, None)


def test_a_bar_whose_peer_is_absent_is_not_measured_and_the_status_is_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workloads = {
        "alone": Workload("x", lambda *_: Result(2.0, {}), 1.0),
        "missed": Workload("x", lambda *_: Result(0.5, {}), 1.0),
        "beside": Workload("x peer", lambda *_: Result(2.0, {}), 1.0, missing=lambda: "the peer is missing"),
    }
    assert _run(monkeypatch, workloads) == 3
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("reached") for line in lines] == [True, False, None]
    assert lines[2] == {"workload": "beside", "not_measured": "the peer is missing"}


def test_the_median_of_the_value_and_of_each_fact_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = iter([Result(3.0, {"us": 10.0}), Result(1.0, {"us": 90.0}), Result(2.0, {"us": 50.0})])
    workloads = {"one": Workload("x", lambda *_: next(runs), 2.0, at_most={"us": 60.0})}
    assert _run(monkeypatch, workloads) == 0
    line = json.loads(capsys.readouterr().out)
    assert (line["value"], line["facts"]) == (2.0, {"us": 50.0})
    assert (line["all"], line["all_facts"]) == ([3.0, 1.0, 2.0], {"us": [10.0, 90.0, 50.0]})


@pytest.mark.parametrize(("us", "status"), [(60.0, 0), (61.0, 1)])
def test_a_fact_of_which_less_is_better_has_a_bar_of_its_own(
    monkeypatch: pytest.MonkeyPatch, us: float, status: int
) -> None:
    workloads = {"one": Workload("x", lambda *_: Result(2.0, {"us": us}), 2.0, at_most={"us": 60.0})}
    assert _run(monkeypatch, workloads, "--repeat", "1") == status
