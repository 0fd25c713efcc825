"""What becomes of a run, without Spark: its record, and runs that come again."""

from collections.abc import Callable
from pathlib import Path

import pytest

from driftq.client import ClientError, TransportError
from driftq.pipeline.errors import PipelineError, UnreachableError
from driftq.pipeline.runs.job import JobResult, JobRun
from driftq.pipeline.runs.launcher import RunSettings, launch
from driftq.pipeline.runs.run_records import RunRecord, RunRecords

SOON_S = 0.001


class Work:
    """Does as it is told, one time after the other; then it asks to be stopped."""

    def __init__(self, state: Path, *times: BaseException | None) -> None:
        self._runs = RunRecords(state)
        self._times = list(times)
        self.done = 0

    def __call__(self, run: JobRun) -> JobResult:
        told = self._times.pop(0)
        if not self._times:
            self._runs.ask_to_stop(self._runs.all()[0])
        if told is not None:
            raise told
        self.done += 1
        return JobResult({"done": self.done})


@pytest.fixture
def again(tmp_path: Path) -> Callable[..., tuple[JobResult, list[RunRecord]]]:
    def run(*times: BaseException | None) -> tuple[JobResult, list[RunRecord]]:
        told: list[RunRecord] = []
        settings = RunSettings(state_dir=str(tmp_path))
        outcome = launch("mine", {}, Work(tmp_path, *times), settings=settings, listener=told.append, every_s=SOON_S)
        return outcome, told

    return run


@pytest.mark.parametrize("away", [UnreachableError("nobody answers"), TransportError("nobody answers", sent=False)])
def test_a_run_that_comes_again_outlives_an_outage_of_the_server(
    again: Callable[..., tuple[JobResult, list[RunRecord]]], away: BaseException
) -> None:
    outcome, told = again(None, away, away, None)
    assert outcome.facts == {"done": 2}
    assert [record.error for record in told if record.error] == ["nobody answers"]
    assert (told[-1].state, told[-1].error) == ("stopped", None)


@pytest.mark.parametrize(
    "times",
    [
        (UnreachableError("nobody answers"), None),  # it never answered: the address may be wrong
        (None, PipelineError("no such column"), None),
    ],
)
def test_other_failures_end_it(
    tmp_path: Path, again: Callable[..., tuple[JobResult, list[RunRecord]]], times: tuple[BaseException | None, ...]
) -> None:
    with pytest.raises((PipelineError, ClientError)):
        again(*times)
    (record,) = RunRecords(tmp_path).all()
    assert record.state == "failed"


class Beginning:
    """A query that takes a few looks to begin, and notes what it was doing when it was stopped."""

    recentProgress = ()  # noqa: N815  # Spark's name

    def __init__(self, looks: int) -> None:
        self._looks = looks
        self.isActive = True
        self.stopped_at: str | None = None

    @property
    def status(self) -> dict[str, str]:
        self._looks -= 1
        return {"message": "Initializing sources" if self._looks > 0 else "Processing new data"}

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802  # Spark's name
        return not self.isActive

    def stop(self) -> None:
        self.stopped_at = self.status["message"]
        self.isActive = False


def test_a_stop_waits_for_a_query_that_just_begins(tmp_path: Path) -> None:
    query = Beginning(5)

    def body(run: JobRun) -> JobResult:
        runs = RunRecords(tmp_path)
        runs.ask_to_stop(runs.all()[0])
        run.follow([query], ends=False)  # type: ignore[list-item]
        return JobResult()

    launch("mine", {}, body, settings=RunSettings(state_dir=str(tmp_path)))
    assert query.stopped_at == "Processing new data"
