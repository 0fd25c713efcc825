"""Steps of a file that cannot work are refused before anything runs."""

from collections.abc import Callable
from typing import Any

import pytest

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs.user_pipeline import FileOptions, PipelineStep, check
from driftq.pipeline.runs.job_options import parse_flags


def same(rows: Any) -> Any:
    return rows


def other(rows: Any) -> Any:
    return rows


def step(name: str, source: str | Callable[..., Any] | None, dest: str | None, function: Any = same) -> PipelineStep:
    return PipelineStep(name, function, source, dest)


def test_steps_that_lead_somewhere_are_taken() -> None:
    check([step("a", "orders", None), step("b", same, "big", other), PipelineStep("c", lambda spark: None)])


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([step("a", "x", "y"), step("a", "x", "z", other)], "two steps are called 'a'"),
        ([step("a", "x", None)], "step 'a' has no dest"),
        ([step("a", "x, y", "y")], "step 'a' reads topic 'y' and writes to it"),
        ([step("a", "x,y", None), step("b", same, "x", other)], "step 'b' reads topic 'x' and writes to it"),
        ([step("a", other, "y")], "neither a topic nor a step"),
    ],
)
def test_what_cannot_work_is_refused_by_name(steps: list[PipelineStep], said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        check(steps)


def test_a_file_takes_the_flags_of_streams() -> None:
    made = parse_flags(FileOptions, ["--max-records", "7", "--once"], name="mine.py", about="")
    assert (made.limits()["maxRecordsPerTrigger"], made.once, made.interval_s) == ("7", True, 0.0)
