"""Staged writes as calls: what is asked, and again when, without a server."""

from typing import Any

import pytest

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.server_connection import AnswerError, Wire
from driftq.pipeline.sink.stage_client import ServerStage
from driftq.pipeline.sink.staged_batch import PartName, TaskAddress

ADDRESS = TaskAddress("w", 7, 1, 99)


class Recorded(Wire):
    """Notes what is asked, and answers from a script of last and synced seqs."""

    def __init__(self, *seqs: int | None, absent: bool = False) -> None:
        super().__init__("http://127.0.0.1:1", None)
        self.asked: list[str] = []
        self._seqs = list(seqs)
        self._absent = absent

    def send(self, path: str, body: bytes) -> dict[str, Any]:
        self.asked.append(f"stage {path}")
        if self._absent:
            raise AnswerError(404, "topic_not_found", "there is no topic")
        return {}

    def put(self, path: str, value: object, *, patient: bool = True) -> dict[str, Any]:
        self.asked.append(f"put {path}")
        self._absent = False
        return {}

    def post(self, path: str, value: object) -> dict[str, Any]:
        self.asked.append(f"commit {path}")
        last = self._seqs.pop(0)
        return {"first_seq": last, "last_seq": last, "deduped": False}

    def get(self, path: str) -> dict[str, Any]:
        self.asked.append(f"get {path}")
        return {"synced_seq": self._seqs.pop(0)}

    def delete(self, path: str) -> dict[str, Any]:
        self.asked.append(f"delete {path}")
        return {}


def committed(wire: Recorded) -> list[str]:
    with ServerStage(wire, create=True) as stage:
        stage.commit("t", "w", 7, [PartName(0, 99, 1)])
    return [asked.partition(" ")[0] for asked in wire.asked]


def test_a_chunk_is_staged_at_its_address_and_may_create_its_topic() -> None:
    wire = Recorded()
    ServerStage(wire, create=True).stage("a/b", ADDRESS, 3, b"")
    assert wire.asked == ["stage /v0/topics/a%2Fb/stage?writer=w&batch=7&part=1&attempt=99&chunk=3&create=true"]


def test_the_topic_is_created_on_a_server_that_does_not_do_so_with_a_part() -> None:
    wire = Recorded(absent=True)
    ServerStage(wire, create=True).stage("a/b", ADDRESS, 3, b"")
    path = "stage /v0/topics/a%2Fb/stage?writer=w&batch=7&part=1&attempt=99&chunk=3&create=true"
    assert wire.asked == [path, "put /v0/topics/a%2Fb", path]


def test_a_topic_that_may_not_be_made_is_asked_for() -> None:
    with pytest.raises(PipelineError, match="there is no topic 't': create it"):
        ServerStage(Recorded(absent=True), create=False).stage("t", ADDRESS, 0, b"")


def test_a_commit_is_over_when_it_is_on_stable_storage() -> None:
    assert committed(Recorded(20, 20)) == ["commit", "get"]
    assert committed(Recorded(20, None)) == ["commit", "get"], "a topic without a disk has nothing to wait for"
    assert committed(Recorded(None)) == ["commit"], "a batch from before the last has come to rest long ago"


def test_a_commit_that_a_restart_has_lost_is_made_again() -> None:
    assert committed(Recorded(20, 5, 20, 20)) == ["commit", "get", "commit", "get"]


def test_a_commit_that_never_comes_to_rest_is_an_error() -> None:
    with pytest.raises(PipelineError, match="is not durable after 10 attempts"):
        committed(Recorded(*[20, 5] * 10))


def test_parts_are_dropped_by_their_writer() -> None:
    wire = Recorded()
    ServerStage(wire, create=True).drop("t", "batch:1")
    assert wire.asked == ["delete /v0/topics/t/stage/batch%3A1"]
