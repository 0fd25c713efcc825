"""The index of runs: commit order, tenants, dead letters, its bound, and that a checkpoint has it all."""

from driftq.features.broker.run_index import FoundRun, RunIndex
from driftq.model.message import DlqNote, Envelope, Message


def _message(run: str = "r", step: str = "", tenant: str = "", dlq: DlqNote | None = None) -> Message:
    return Message("v", envelope=Envelope(run_id=run, step_id=step, tenant_id=tenant, dlq=dlq))


def _filled(index: RunIndex, count: int, run: str = "r", first: int = 0) -> RunIndex:
    for offset in range(first, first + count):
        index.stored("t", 0, offset, offset, _message(run, str(offset)))
    return index


def _steps(found: FoundRun | None) -> list[str]:
    assert found is not None
    return [step.step_id for step, _ in found.steps]


def test_steps_come_in_commit_order_and_messages_without_run_are_none() -> None:
    index = RunIndex(100)
    index.stored("a", 1, 5, 10, _message(step="one"))
    index.stored("a", 0, 6, 11, Message("v"))
    index.stored("a", 0, 7, 11, _message("", "no run"))
    index.stored("b", 0, 0, 12, _message(step="two"))
    found = index.find("r")
    assert _steps(found) == ["one", "two"]
    assert found is not None
    step = found.steps[0][0]
    assert (step.topic, step.partition, step.offset, step.ts, found.truncated) == ("a", 1, 5, 10, False)
    assert index.find("other") is None


def test_told_twice_a_message_is_one_step() -> None:
    index = _filled(_filled(RunIndex(100), 3), 3)
    assert _steps(index.find("r")) == ["0", "1", "2"]
    assert len(index) == 3


def test_tenants_are_apart_and_all_of_them_are_the_run() -> None:
    index = RunIndex(100)
    for offset, tenant in enumerate(("ta", "tb", "")):
        index.stored("t", 0, offset, 0, _message(step=tenant, tenant=tenant))
    assert [_steps(index.find("r", tenant)) for tenant in ("ta", "tb", "")] == [["ta"], ["tb"], [""]]
    assert _steps(index.find("r")) == ["ta", "tb", ""]
    assert index.find("r", "tc") is None


def test_a_dead_letter_belongs_to_its_origin_and_is_no_step() -> None:
    index = _filled(RunIndex(100), 2)
    note = DlqNote("t", 0, 1, 3, "boom", 99, "g")
    for _ in range(2):
        index.stored("dlq.t", 0, 0, 100, _message(dlq=note))
    index.stored("dlq.t", 0, 1, 100, _message(dlq=DlqNote("t", 0, 77, 3, "of nobody", 99, "g")))
    found = index.find("r")
    assert found is not None
    assert [len(trace.letters) for _, trace in found.steps] == [0, 1]
    letter = found.steps[1][1].letters[0]
    assert (letter.topic, letter.offset, letter.group, letter.attempts, letter.last_error) == (
        *("dlq.t", 0, "g", 3),
        "boom",
    )


def test_a_letter_that_recovery_tells_before_its_step_is_kept_for_it() -> None:
    """Topics are read again one behind the other, and the one for letters may be the older."""
    index = RunIndex(100)
    note = DlqNote("work", 0, 0, 3, "boom", 77, "g")
    letter = _message(step="s1", dlq=note)
    for _ in range(2):
        index.stored("dlq.work", 0, 0, 5, letter)
    index.ended("work", 0, "h", 2)
    index.stored("work", 0, 0, 1, _message(step="s1"))
    found = index.find("r")
    assert found is not None
    ((_, trace),) = found.steps
    assert [(one.group, one.routed_at_ms) for one in trace.letters] == [("g", 77)]
    assert trace.attempts == {"h": 2}
    index.opened()
    index.stored("dlq.work", 0, 1, 5, _message(step="s2", dlq=DlqNote("work", 0, 9, 3, "boom", 78, "g")))
    index.stored("work", 0, 9, 1, _message(step="s2"))
    found = index.find("r")
    assert found is not None
    assert found.steps[1][1].letters == [], "of a step that was forgotten there is no letter to keep"


def test_the_index_is_bounded_and_says_what_it_left_out() -> None:
    index = _filled(RunIndex(50), 200)
    found = index.find("r")
    steps = _steps(found)
    assert found is not None
    assert found.truncated
    assert steps == [str(n) for n in range(200 - len(steps), 200)]
    assert 45 <= len(steps) <= 50
    assert len(index) <= 50


def test_a_run_that_comes_again_after_all_its_steps_went_is_not_whole() -> None:
    index = _filled(RunIndex(50), 10, "old")
    _filled(index, 100, first=10)
    assert index.find("old") is None
    _filled(index, 1, "old", first=500)
    found = index.find("old")
    assert found is not None
    assert found.truncated
    fresh = index.find("r")
    assert fresh is not None
    assert fresh.truncated


def test_no_room_at_all_is_no_index() -> None:
    assert _filled(RunIndex(0), 5).find("r") is None


def test_a_checkpoint_has_it_all_and_fits_a_smaller_index() -> None:
    index = _filled(RunIndex(50), 120)
    index.stored("dlq.t", 0, 0, 100, _message(dlq=DlqNote("t", 0, 119, 3, "boom", 99, "g")))
    index.ended("t", 118, "g", 3)
    again, smaller = RunIndex(50), RunIndex(20)
    for other in (again, smaller):
        other.restore(index.capture())
    assert again.find("r") == index.find("r")
    assert again.capture() == index.capture()
    assert _steps(smaller.find("r"))[-1] == "119"
    assert len(smaller) <= 20


def test_letters_of_steps_that_went_cost_nothing() -> None:
    index = _filled(RunIndex(20), 1)
    for offset in range(30):
        index.stored("dlq.t", 0, offset, 1, _message(dlq=DlqNote("t", 0, 0, 1, "boom", 1, str(offset))))
    assert len(index) <= 20
    _filled(index, 100, first=1)
    assert len(index) <= 20
    assert index.find("nobody") is None
