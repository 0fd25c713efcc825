"""Which letters a redrive takes: those that wait, also where only the server knows which do."""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import json

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs.pace import Pace
from driftq.pipeline.jobs.redrive.broker_dead_letters import BrokerMover
from driftq.pipeline.jobs.redrive.dead_letter_table import DeadLetterRow, first_waiting
from driftq.pipeline.jobs.redrive.redrive_job import move_letters
from driftq.pipeline.runs.job import JobRun


def letters(*seqs: int) -> list[DeadLetterRow]:
    return [DeadLetterRow(seq, "t", None) for seq in seqs]


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
    run = SimpleNamespace(client=server, pause=lambda _: False, stopping=lambda: False)
    return BrokerMover(cast("JobRun", run), "@dlq.t", None)


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


class Paced:
    """A server that moves one letter for each look at its job, until it is cancelled."""

    def __init__(self) -> None:
        self.moved = 0
        self.state = "running"

    def request(self, method: str, _: str, json: Any = None) -> Any:
        if method == "DELETE":
            self.state = "cancelled"
        elif method == "GET":
            self.moved += 1
        return _answer({"job_id": "j", "matched": 9, "state": self.state, "moved": self.moved, "failed": 0})


def test_a_redrive_that_is_stopped_stops_the_server_and_counts_what_it_has_moved() -> None:
    server = Paced()
    told: list[int] = []
    run = SimpleNamespace(
        client=server,
        tell=lambda progress: told.append(progress.rows),
        stopping=lambda: len(told) >= 3,
        pause=lambda _: len(told) >= 3,
    )
    tally: dict[str, int] = defaultdict(int)
    stopped = cast("JobRun", run)
    move_letters(stopped, BrokerMover(stopped, "@dlq.t", 1.0), letters(*range(1, 10)), Pace(None), tally)
    assert (server.state, server.moved, tally["moved"]) == ("cancelled", 4, 4)


def test_another_topic_of_the_broker_has_no_letters() -> None:
    with pytest.raises(PipelineError, match="'@t' is not a dead-letter topic of the broker"):
        BrokerMover(cast("JobRun", None), "@t", None)


@pytest.mark.parametrize(
    ("limit", "expected"), [(None, [3, 4, 6]), (1, [3]), (2, [3, 4]), (3, [3, 4, 6]), (9, [3, 4, 6]), (0, [])]
)
def test_a_limit_counts_letters_that_wait(limit: int | None, expected: list[int]) -> None:
    there, gone = [1, 2, 3, 4, 5, 6], {1, 2, 5}

    def page(behind: int, most: int | None) -> list[DeadLetterRow]:
        return letters(*[seq for seq in there if seq > behind][:most])

    found = first_waiting(page, lambda some: [letter for letter in some if letter.seq not in gone], limit)
    assert found == letters(*expected)
