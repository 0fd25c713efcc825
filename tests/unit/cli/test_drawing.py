"""Trees: every step and every router is drawn once for each place it has, and rings end."""

import pytest
from rich.console import Console

from driftq.cli.topics.router import draw_graph
from driftq.cli.work.run import tree_of
from driftq.model.router_spec import Guarantee
from driftq.model.v0_answers import RouterRow
from driftq.model.v1_answers import RunStep, RunSteps, StepInGroup


def drawn(*trees: object) -> list[str]:
    console = Console(width=300, record=True, file=None, quiet=False)
    with console.capture() as said:
        for tree in trees:
            console.print(tree)
    return said.get().splitlines()


def step(step_id: str, parent: str = "", **more: object) -> RunStep:
    facts = {"topic": "t", "partition": 0, "offset": 0, "ts": 1, "attempts": 1, "state": "done", "last_error": ""}
    return RunStep(step_id=step_id, parent_step_id=parent, **{**facts, "groups": [], **more})  # type: ignore[arg-type]


def places(lines: list[str]) -> dict[str, int]:
    return {line.split("── ")[1].split()[0]: line.index("── ") // 4 for line in lines[1:]}


def test_a_child_that_comes_before_its_parent_is_below_it() -> None:
    steps = [step("c", "b"), step("b", "a"), step("a"), step("d", "c")]
    assert places(drawn(tree_of(RunSteps("r", steps)))) == {"a": 0, "b": 1, "c": 2, "d": 3}


@pytest.mark.parametrize("parents", [("b", "a"), ("a", "b")])
def test_steps_that_are_each_others_parents_are_drawn_all_the_same(parents: tuple[str, str]) -> None:
    lines = drawn(tree_of(RunSteps("r", [step("a", parents[0]), step("b", parents[1])])))
    assert places(lines).keys() == {"a", "b"}


def test_a_step_tells_its_error_its_groups_and_its_dead_letters() -> None:
    groups = [StepInGroup("g1", 1, "done", ""), StepInGroup("g2", 3, "dead", "no [luck]")]
    dead = step("a", state="dead", last_error="no [luck]", groups=groups, dlq=[{"topic": "dlq.t"}])
    lines = drawn(tree_of(RunSteps("r", [dead])))
    assert "last_error no [luck]" in lines[1]
    assert [line.split("── ")[1].split()[0] for line in lines[2:]] == ["group", "group", "dlq"]


def row(router: str, source: str, dest: str) -> RouterRow:
    return RouterRow(router, source, dest, Guarantee.AT_LEAST_ONCE, 0)


def test_a_graph_begins_at_its_sources_and_a_ring_anywhere() -> None:
    rows = [row("r1", "a", "b"), row("r2", "b", "c"), row("r3", "x", "y"), row("r4", "y", "x")]
    lines = drawn(*draw_graph(rows))
    assert [line for line in lines if "──" not in line] == ["a", "x"]
    assert lines[-1].endswith("(cycle)")
    assert len(lines) == 6


def test_a_graph_of_a_topic_that_nothing_leaves_is_empty() -> None:
    assert draw_graph([row("r1", "a", "b")], "b") == []
    assert draw_graph([]) == []
