"""Which letters a redrive takes: those that wait, also where only the server knows which do."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import json

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs.broker_letters import BrokerMover
from driftq.pipeline.jobs.job import Run
from driftq.pipeline.jobs.letters import Letter, first_waiting


def letters(*seqs: int) -> list[Letter]:
    return [Letter(seq, "t", None) for seq in seqs]


class Server:
    """A server that has retired some letters, and moves what it is asked to."""

    def __init__(self, retired: set[int]) -> None:
        self.retired = retired
        self.calls = self.moved = 0

    def request(self, method: str, _: str, json: Any = None) -> Any:
        if method == "GET":
            return _answer({"state": "done", "moved": self.moved, "failed": 0})
        self.calls += 1
        wait = [offset for offset in json["offsets"] if offset + 1 not in self.retired]
        if json.get("dry_run"):
            return _answer({"matched": len(wait)})
        self.moved = len(wait)
        return _answer({"job_id": "j", "matched": len(wait)})


def _answer(value: object) -> Any:
    return SimpleNamespace(content=json.encode(value))


def mover(server: Server) -> BrokerMover:
    run = SimpleNamespace(client=server, pause=lambda _: False)
    return BrokerMover(cast("Run", run), "v1:dlq.t", None)


@pytest.mark.parametrize("retired", [set(), {1}, {3, 4, 8}, {2, 4, 6, 8}, set(range(1, 9))])
def test_letters_that_are_retired_do_not_wait(retired: set[int]) -> None:
    found = mover(Server(retired)).waiting(letters(*range(1, 9)))
    assert found == letters(*(seq for seq in range(1, 9) if seq not in retired))


def test_where_all_letters_wait_one_question_tells() -> None:
    server = Server(set())
    mover(server).waiting(letters(*range(1, 9)))
    assert server.calls == 1
    assert mover(server).waiting([]) == []
    assert server.calls == 1


def test_letters_that_somebody_else_has_moved_meanwhile_are_counted_as_not_moved() -> None:
    assert list(mover(Server({2})).move(letters(1, 2, 3))) == [(0, 1), (2, 0)]


def test_another_topic_of_the_broker_has_no_letters() -> None:
    with pytest.raises(PipelineError, match="'v1:t' is no dead-letter topic of the broker"):
        BrokerMover(cast("Run", None), "v1:t", None)


@pytest.mark.parametrize(
    ("limit", "expected"), [(None, [3, 4, 6]), (1, [3]), (2, [3, 4]), (3, [3, 4, 6]), (9, [3, 4, 6]), (0, [])]
)
def test_a_limit_counts_letters_that_wait(limit: int | None, expected: list[int]) -> None:
    there, gone = [1, 2, 3, 4, 5, 6], {1, 2, 5}

    def page(behind: int, most: int | None) -> list[Letter]:
        return letters(*[seq for seq in there if seq > behind][:most])

    found = first_waiting(page, lambda some: [letter for letter in some if letter.seq not in gone], limit)
    assert found == letters(*expected)
