"""What the log tells of a run, folded."""

import random
from typing import Any

import msgspec
import pandas as pd

from driftq.pipeline.jobs.lineage.lineage_job import fold_run
from driftq.pipeline.jobs.lineage.run_fold import BrokerRecord, LetterNote, RunState, Try, dump, fold, load


def seen(
    seq: int, step: str, parent: str = "", *, topic: str = "@work", dlq: Any = None, redriven: bool = False
) -> BrokerRecord:
    envelope = {"run_id": "r", "step_id": step, "parent_step_id": parent}
    if dlq is not None:
        envelope["dlq"] = dlq
    routing = '{"meta":{"redriven":"job"}}' if redriven else None
    return BrokerRecord(topic, seq, 1000 * seq, "p3", msgspec.json.encode(envelope).decode(), routing)


def note(offset: int, error: str = "boom") -> dict[str, Any]:
    return {
        "original_topic": "work",
        "original_partition": 3,
        "original_offset": offset,
        "attempts": 5,
        "last_error": error,
        "routed_at_ms": 9000,
        "group": "g",
    }


EMPTY = RunState("r", "")


def test_a_message_is_a_try_of_its_step() -> None:
    state = fold(EMPTY, [seen(1, "a"), seen(2, "b", "a", redriven=True)])
    assert state.tries == [
        Try("a", "", "@work", 3, 0, 1000, False),
        Try("b", "a", "@work", 3, 1, 2000, True),
    ]


def test_a_dead_letter_belongs_to_what_it_is_a_copy_of() -> None:
    state = fold(EMPTY, [seen(1, "a"), seen(1, "a", topic="@dlq.work", dlq=note(0))])
    assert len(state.tries) == 1
    assert state.letters == [LetterNote("@work", 0, "g", 5, "boom", 9000, "a", "", 3, False)]


def test_a_dead_letter_tells_the_step_of_its_message_which_may_be_gone() -> None:
    state = fold(EMPTY, [seen(1, "b", "a", topic="@dlq.work", dlq=note(7), redriven=True)])
    assert state.tries == []
    assert state.letters == [LetterNote("@work", 7, "g", 5, "boom", 9000, "b", "a", 3, True)]


def test_a_state_whose_letters_do_not_tell_their_steps_can_be_loaded() -> None:
    state = load("r", "", '{"tries":[],"letters":[["@work",0,"g",5,"boom",9000]]}')
    assert state.letters == [LetterNote("@work", 0, "g", 5, "boom", 9000)]


def test_what_is_told_twice_and_in_any_order_changes_nothing() -> None:
    told = [seen(1, "a"), seen(2, "b", "a"), seen(1, "b", topic="@dlq.work", dlq=note(1))]
    whole = fold(EMPTY, told)
    chance = random.Random(5)
    for _ in range(20):
        shuffled = chance.sample(told * 2, k=6)
        found = load("r", "", dump(fold(fold(EMPTY, shuffled[:3]), shuffled[3:])))
        assert sorted(found.tries, key=str) == sorted(whole.tries, key=str)
        assert found.letters == whole.letters


class FakeKept:
    """What Spark keeps for a run."""

    def __init__(self) -> None:
        self.get: Any = None

    @property
    def exists(self) -> bool:
        return self.get is not None

    def update(self, newValue: Any) -> None:  # noqa: N803
        self.get = newValue


def test_the_state_of_a_run_goes_on_from_batch_to_batch() -> None:
    kept = FakeKept()

    def frame(one: BrokerRecord) -> pd.DataFrame:
        return pd.DataFrame([one])

    list(fold_run(("t", "r"), [frame(seen(1, "a"))], kept))
    (out,) = fold_run(("t", "r"), [frame(seen(2, "b", "a")), frame(seen(3, "c", "b"))], kept)
    assert (out["tenant_id"][0], out["run_id"][0]) == ("t", "r")
    assert [one.step_id for one in load("r", "t", out["state"][0]).tries] == ["a", "b", "c"]
