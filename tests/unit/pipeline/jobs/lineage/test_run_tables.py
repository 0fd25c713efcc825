"""Rows of runs, steps and attempts."""

import msgspec
from msgspec import structs

from driftq.pipeline.jobs.lineage.run_fold import LetterNote, RunState, Try
from driftq.pipeline.jobs.lineage.run_tables import Memory, MessageStatus, Place, RunRows, remember, rows_of

T = "@work"


def attempt(step: str, offset: int, ts: int, parent: str = "", *, redriven: bool = False) -> Try:
    return Try(step, parent, T, 0, offset, ts, redriven)


def memory(*tries: Try, letters: list[LetterNote] | None = None) -> Memory:
    return Memory(RunState("r", "tenant", list(tries), letters or []))


def done(*offsets: int, group: str = "g") -> dict[Place, list[MessageStatus]]:
    return {(T, offset): [MessageStatus(group, "done", 1)] for offset in offsets}


def rows(known: Memory) -> RunRows:
    return rows_of(known, "")


def test_a_step_ends_when_the_step_behind_it_begins_and_a_leaf_when_it_is_seen_done() -> None:
    known = remember(memory(attempt("a", 0, 100), attempt("b", 1, 250, "a")), done(0, 1), now_ms=400)
    found = rows(known)
    assert [(step["step_id"], step["status"], step["latency_ms"]) for step in found.steps] == [
        ("a", "done", 150),
        ("b", "done", 150),
    ]
    assert (found.run["status"], found.run["latency_ms"], found.run["open"]) == ("done", 300, False)


def test_when_a_leaf_was_first_seen_done_stays_so() -> None:
    known = remember(memory(attempt("a", 0, 100)), done(0), now_ms=400)
    assert rows(remember(known, done(0), now_ms=900)).steps[0]["end"] == 400


def test_a_run_with_a_step_that_waits_is_open() -> None:
    told = {(T, 0): [MessageStatus("g", "waiting", 2, "boom")]}
    found = rows(remember(memory(attempt("a", 0, 100)), told, now_ms=400))
    assert (found.run["status"], found.run["open"], found.run["end"]) == ("running", True, None)
    assert (found.run["retries"], found.run["last_error"]) == (1, "boom")


def test_attempts_that_were_seen_are_kept_when_it_is_done() -> None:
    known = remember(memory(attempt("a", 0, 100)), {(T, 0): [MessageStatus("g", "waiting", 2, "boom")]}, now_ms=200)
    found = rows(remember(known, done(0), now_ms=300))
    assert (found.attempts[0]["deliveries"], found.attempts[0]["last_error"]) == (3, "boom")
    assert found.steps[0]["retries"] == 2


def test_a_dead_letter_ends_the_step_and_the_run() -> None:
    letters = [LetterNote(T, 0, "g", 5, "boom", 900)]
    found = rows(remember(memory(attempt("a", 0, 100), letters=letters), done(0), now_ms=1000))
    assert found.run["status"] == "dead"
    assert (found.run["dead_steps"], found.run["open"]) == (1, False)
    assert (found.steps[0]["end"], found.steps[0]["retries"], found.steps[0]["last_error"]) == (900, 4, "boom")
    assert found.attempts[0]["status"] == "dead"


def test_letters_whose_message_was_not_read_are_a_dead_step() -> None:
    told = ("b", "a", 3, True)
    letters = [LetterNote(T, 7, "slow", 2, "late", 950, *told), LetterNote(T, 7, "g", 5, "boom", 900, *told)]
    for given in (letters, letters[::-1]):
        found = rows(memory(attempt("a", 0, 100), letters=given))
        assert (found.run["status"], found.run["dead_steps"], found.run["open"]) == ("dead", 1, False)
        dead = found.steps[1]
        assert (dead["step_id"], dead["parent_step_id"], dead["topic"], dead["status"]) == ("b", "a", T, "dead")
        assert (dead["start"], dead["end"]) == (900, 950)
        assert {(row["offset"], row["partition"], row["kind"]) for row in found.attempts} == {(7, 3, "redriven")}
        assert {(row["group"], row["deliveries"], row["last_error"]) for row in found.attempts} == {
            ("g", 5, "boom"),
            ("slow", 2, "late"),
        }


def test_a_run_of_which_only_a_letter_is_known_is_closed() -> None:
    found = rows(remember(memory(letters=[LetterNote(T, 7, "g", 5, "boom", 900)]), {}, now_ms=1000))
    assert (found.run["status"], found.run["open"], found.run["last_error"]) == ("dead", False, "boom")
    assert [step["step_id"] for step in found.steps] == [f"{T}#7"]


def test_a_letter_whose_message_is_read_later_is_of_the_same_step() -> None:
    letters = [LetterNote(T, 0, "g", 5, "boom", 900, "a")]
    (early,), (late,) = rows(memory(letters=letters)).steps, rows(memory(attempt("a", 0, 100), letters=letters)).steps
    assert (early["step_id"], early["start"]) == ("a", 900)
    assert (late["step_id"], late["start"], late["end"]) == ("a", 100, 900)


def test_a_try_behind_a_message_that_was_not_read_decides_though_the_letter_is_younger() -> None:
    known = memory(attempt("a", 1, 100), letters=[LetterNote(T, 0, "g", 5, "boom", 900, "a")])
    found = rows(remember(known, done(1), now_ms=200))
    assert (found.run["status"], found.steps[0]["start"]) == ("done", 100)
    assert [(row["offset"], row["kind"]) for row in found.attempts] == [(0, "first"), (1, "again")]


def test_a_message_that_the_server_calls_dead_is_dead_before_its_letter_is_read() -> None:
    told = {(T, 0): [MessageStatus("g", "dead", 3, "boom", 900)]}
    known = remember(memory(attempt("a", 0, 100)), told, now_ms=1000)
    found = rows(known)
    assert (found.run["status"], found.run["dead_steps"], found.run["open"]) == ("dead", 1, False)
    assert (found.steps[0]["end"], found.steps[0]["retries"], found.steps[0]["last_error"]) == (900, 2, "boom")
    read = structs.replace(
        known, state=RunState("r", "tenant", known.state.tries, [LetterNote(T, 0, "g", 3, "boom", 900)])
    )
    assert rows(read) == found


def test_what_was_dead_stays_so_where_the_server_knows_only_that_it_is_settled() -> None:
    known = remember(memory(attempt("a", 0, 100)), {(T, 0): [MessageStatus("g", "dead", 3, "boom", 900)]}, now_ms=1000)
    assert rows(remember(known, done(0), now_ms=1100)) == rows(known)


def test_a_redriven_try_takes_the_step_on() -> None:
    letters = [LetterNote(T, 0, "g", 2, "boom", 900)]
    known = memory(attempt("a", 0, 100), attempt("a", 1, 1000, redriven=True), letters=letters)
    assert rows(remember(known, {(T, 1): [MessageStatus("g", "ready", 0)]}, now_ms=1100)).run["status"] == "running"
    found = rows(remember(known, done(1), now_ms=1200))
    assert found.run["status"] == "done"
    assert [row["kind"] for row in found.attempts] == ["first", "redriven"]
    assert found.steps[0]["retries"] == 2


def test_a_run_that_the_server_has_forgotten_is_unknown_and_not_asked_about_again() -> None:
    found = rows(remember(memory(attempt("a", 0, 100), attempt("b", 1, 200, "a")), {}, now_ms=1000))
    assert [step["status"] for step in found.steps] == ["done", "unknown"]
    assert (found.run["status"], found.run["open"]) == ("unknown", False)


def test_a_message_that_the_server_has_forgotten_is_unknown_though_it_knows_others_of_the_run() -> None:
    known = memory(attempt("kept", 0, 100), attempt("a", 1, 200), attempt("b", 2, 300))
    known = remember(known, {**done(0), (T, 1): [MessageStatus("g", "leased", 1)]}, now_ms=400)
    known = remember(known, {(T, 2): [MessageStatus("g", "ready", 0)]}, now_ms=500)
    found = rows(known)
    assert [step["status"] for step in found.steps] == ["done", "unknown", "running"]
    assert found.run["open"]
    found = rows(remember(known, done(2), now_ms=600))
    assert (found.run["status"], found.run["open"]) == ("unknown", False)


def test_a_message_that_the_server_has_forgotten_and_knows_again_is_as_it_says() -> None:
    known = remember(memory(attempt("a", 0, 100)), {}, now_ms=200)
    assert rows(remember(known, done(0), now_ms=300)).run["status"] == "done"


def test_of_steps_with_the_same_times_the_last_on_the_critical_path_is_the_one_with_most_ancestors() -> None:
    """Messages of one millisecond have the same times."""
    tries = (attempt("plan", 0, 100), attempt("write", 1, 100, "plan"), attempt("check", 2, 100, "write"))
    for order in (tries, tries[::-1]):
        assert rows(remember(memory(*order), {}, now_ms=100)).run["critical_path"] == "plan > write > check"


def test_the_critical_path_leads_to_what_ends_last() -> None:
    tries = [attempt("root", 0, 0), attempt("quick", 1, 10, "root"), attempt("slow", 2, 20, "root")]
    tries.append(attempt("slower", 3, 500, "slow"))
    known = remember(memory(*tries), done(0, 1, 2), now_ms=30)
    found = rows(remember(known, done(3), now_ms=700))
    assert found.run["critical_path"] == "root > slow > slower"
    assert found.run["critical_path_ms"] == 700
    assert [step["step_id"] for step in found.steps if step["critical"]] == ["root", "slow", "slower"]


def test_steps_that_name_each_other_as_parents_end_the_walk() -> None:
    found = rows(memory(attempt("a", 0, 0, "b"), attempt("b", 1, 10, "a")))
    assert set(found.run["critical_path"].split(" > ")) == {"a", "b"}


def test_a_message_without_a_step_id_is_a_step_of_its_own() -> None:
    found = rows(memory(attempt("", 0, 0), attempt("", 1, 10)))
    assert [step["step_id"] for step in found.steps] == [f"{T}#0", f"{T}#1"]


def test_what_is_known_survives_as_json() -> None:
    known = remember(memory(attempt("a", 0, 100), letters=[LetterNote(T, 0, "g", 5, "boom", 900)]), done(0), now_ms=1)
    assert msgspec.json.decode(msgspec.json.encode(known), type=Memory) == known


def test_what_is_known_can_be_decoded_where_letters_do_not_tell_their_steps() -> None:
    letter = [T, 0, "g", 5, "boom", 900]
    kept = {"state": {"run_id": "r", "tenant_id": "tenant", "tries": [], "letters": [letter]}, "forgotten": False}
    known = msgspec.json.decode(msgspec.json.encode(kept), type=Memory)
    assert known == memory(letters=[LetterNote(T, 0, "g", 5, "boom", 900)])
