"""The plan of a replay is kept once, whoever begins it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import json

from driftq.client import Client, NotFoundError
from driftq.errors import BatchTooLargeError
from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs.replay.replay_job import (
    _LOST,
    _TOO_LARGE,
    ReplayOptions,
    _asked,
    _cursor_name,
    _done,
    _keep,
    _kept,
)
from driftq.pipeline.jobs.replay.replay_plan import ReplayPlan, ReplayRequest
from driftq.pipeline.jobs.replay.replay_source import ReplaySource
from driftq.pipeline.lake.delta_tables import Lake
from driftq.pipeline.lake.lake_owner import claim
from driftq.pipeline.runs.job import JobRun
from driftq.pipeline.source.split_plan import SeqGap
from driftq.pipeline.source.split_reader import loss
from tests.unit.features.staging.rig import StagingRig

ASKED = ReplayRequest(topic="t")


class Destination:
    """A topic with cursors and one writer, as a client shows it; a rival may keep its plan before a cursor is put."""

    def __init__(self, rival: ReplayPlan | None = None) -> None:
        self.made = False
        self.cursors: dict[str, dict[str, str]] = {}
        self.last_batch: int | None = None
        self._rival = rival

    def topic(self, _: str) -> "Destination":
        return self

    def info(self, *, touch: bool) -> None:
        if not self.made:
            raise NotFoundError(404, "topic_not_found", "")

    def create(self) -> None:
        self.made = True

    def cursor(self, name: str) -> Any:
        if name not in self.cursors:
            raise NotFoundError(404, "not_found", "")
        return SimpleNamespace(meta=self.cursors[name])

    def set_cursor(self, name: str, seq: int, *, meta: dict[str, str]) -> Any:
        if self._rival is not None:
            self.cursors[name] = {"plan": json.encode(self._rival).decode()}
        created = name not in self.cursors
        self.cursors[name] = meta
        return SimpleNamespace(moved=created)

    def writer(self, _: str) -> Any:
        if self.last_batch is None:
            raise NotFoundError(404, "not_found", "")
        return SimpleNamespace(last_batch=self.last_batch)


def client_of(destination: Destination) -> Client:
    return cast("Client", destination)


def plan(last: int = 10, asked: ReplayRequest = ASKED) -> ReplayPlan:
    return ReplayPlan("replay:n", asked, 1, 3, last, 3, 5)


def test_a_plan_is_kept_and_found_again() -> None:
    client = client_of(Destination())
    assert _kept(client, "to", "replay:n", ASKED) is None
    assert _keep(client, "to", plan()) == plan()
    assert _keep(client, "to", plan(last=99)) == plan(), "the first one stays"
    assert _kept(client, "to", "replay:n", ASKED) == plan()


def test_of_two_that_begin_at_the_same_moment_one_goes_on() -> None:
    destination = Destination(rival=plan(last=8))
    with pytest.raises(PipelineError, match="started at the same moment"):
        _keep(client_of(destination), "to", plan())
    found = _kept(client_of(destination), "to", "replay:n", ASKED)
    assert found is not None
    assert found.writer == plan(last=8).writer, "what the one writes, the plan that is kept knows"


@pytest.mark.parametrize(
    "asked", [ReplayRequest(topic="u"), ReplayRequest(topic="t", from_seq=6), ReplayRequest(topic="t", where="seq > 1")]
)
def test_a_name_that_another_question_has_is_refused(asked: ReplayRequest) -> None:
    client = client_of(Destination())
    _keep(client, "to", plan())
    with pytest.raises(PipelineError, match=r"another replay 'replay:n' into 'to' exists: its .*, here it is"):
        _kept(client, "to", "replay:n", asked)


@pytest.mark.parametrize("meta", [{}, {"plan": '{"id":"x","topic":"t","first":1,"last":9,"step":5}'}])
def test_a_cursor_without_a_plan_that_is_understood_is_refused(meta: dict[str, str]) -> None:
    destination = Destination()
    destination.cursors["replay:n"] = meta
    with pytest.raises(PipelineError, match="does not belong to a replay that can continue: choose another --name"):
        _kept(client_of(destination), "to", "replay:n", ASKED)


@pytest.mark.parametrize(("last_batch", "expected"), [(None, 2), (1, 2), (7, 7)])
def test_how_far_a_replay_is_its_writer_says(last_batch: int | None, expected: int) -> None:
    destination = Destination()
    destination.last_batch = last_batch
    assert _done(client_of(destination), "to", plan()) == expected


def test_rate_and_lake_do_not_make_another_replay() -> None:
    def named(**more: Any) -> str:
        options = ReplayOptions(topic="t", to="to", **more)
        return _cursor_name(options, _asked(options))

    assert named() == named(lake="lake") == named(lake="lake/", rate=3.0)
    assert named(from_time="2026-11-16T12:00:00Z") == named(from_time="1794830400000")
    assert len({named(), named(from_seq=1), named(to_seq=1), named(where="true"), named(epoch=1)}) == 5
    assert named(name="mine") == "replay:mine"


@pytest.mark.parametrize(("owner", "same"), [("s", True), ("another", False), (None, True)])
def test_the_log_of_another_server_is_not_joined_to_an_archive(owner: str | None, same: bool, tmp_path: Path) -> None:
    """Both may count their epochs from 1. What a server that is gone had archived can be replayed into another."""
    if owner is not None:
        claim(Lake(tmp_path), owner)
    manifest = SimpleNamespace(epoch=1, server_id="s")
    topic = SimpleNamespace(info=lambda *, touch: None, segments=lambda: manifest)
    run = cast("JobRun", SimpleNamespace(client=SimpleNamespace(topic=lambda _: topic)))
    found = ReplaySource(run, "t", str(tmp_path))._manifest()
    assert (found is not None) == same


def test_a_commit_that_is_too_large_has_the_message_that_a_replay_halves_its_step_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("driftq.features.staging.staging.COMMIT_BYTES_MAX", 1)
    rig = StagingRig()
    rig.put("a")
    rig.stage("long", "enough")
    with pytest.raises(BatchTooLargeError) as refused:
        rig.commit()
    assert refused.value.message == "14 bytes in one commit; the limit is 1; commit fewer parts"
    assert _TOO_LARGE in refused.value.message


def test_a_loss_during_a_read_has_the_message_that_a_replay_repeats_its_step_for() -> None:
    assert _LOST in loss("t", [SeqGap(1, 2, "cap")]).message
