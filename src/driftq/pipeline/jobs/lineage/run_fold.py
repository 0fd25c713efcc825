"""Folds the messages of an agent run into its state, one by one. Spark keeps this state for each run.

    a message with a run_id             a try of its step: the first one, one more, or a redriven one
    its copy in a dead-letter topic     the end of that try in one group, with its attempts and its last error

Invariants
- Folding a message twice changes nothing: a message is identified by its topic and offset.
- A dead letter may arrive before its message, because they are read from two topics, or without it.

Executors may not have DriftQ installed, so this code uses only the standard library and what can be pickled by value,
which msgspec structs cannot.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from driftq.model.names import broker_topic

_PARTITION = "p"


class LetterNote(NamedTuple):
    """A dead letter, identified by the topic and offset of its message, and what it contains of that message."""

    topic: str
    offset: int
    group: str
    attempts: int
    last_error: str
    routed_ms: int
    step_id: str = ""
    parent_step_id: str = ""
    partition: int = 0
    redriven: bool = False


class Try(NamedTuple):
    """A message: one try of a step."""

    step_id: str
    parent_step_id: str
    topic: str
    partition: int
    offset: int
    ts_ms: int
    redriven: bool


@dataclass(frozen=True)
class RunState:
    """The tries and dead letters of one run, in the order in which they were read."""

    run_id: str
    tenant_id: str
    tries: list[Try] = field(default_factory=list)
    letters: list[LetterNote] = field(default_factory=list)


class BrokerRecord(NamedTuple):
    """A record of a broker topic, as the job passes it on."""

    topic: str
    seq: int
    ts_ms: int
    tag: str | None
    envelope: str
    routing: str | None = None


def fold(state: RunState, seen: Iterable[BrokerRecord]) -> RunState:
    """Return the state of a run with more of its records added."""
    tries = {(one.topic, one.offset): one for one in state.tries}
    letters = {(one.topic, one.offset, one.group): one for one in state.letters}
    for record in seen:
        envelope = json.loads(record.envelope)
        note = envelope.get("dlq")
        if note is not None:
            letter = _letter(record, envelope, note)
            letters[letter.topic, letter.offset, letter.group] = letter
        else:
            one = _try(record, envelope)
            tries[one.topic, one.offset] = one
    return RunState(state.run_id, state.tenant_id, list(tries.values()), list(letters.values()))


def _letter(record: BrokerRecord, envelope: Mapping[str, Any], note: Mapping[str, Any]) -> LetterNote:
    """Return the letter of a `DlqNote`, which always has all its members."""
    return LetterNote(
        broker_topic(note["original_topic"]),
        note["original_offset"],
        note["group"],
        note["attempts"],
        note["last_error"],
        note["routed_at_ms"],
        envelope.get("step_id", ""),
        envelope.get("parent_step_id", ""),
        note["original_partition"],
        _is_redriven(record),
    )


def _try(record: BrokerRecord, envelope: Mapping[str, Any]) -> Try:
    return Try(
        envelope.get("step_id", ""),
        envelope.get("parent_step_id", ""),
        record.topic,
        int(record.tag.removeprefix(_PARTITION)) if record.tag else 0,
        record.seq - 1,
        record.ts_ms,
        _is_redriven(record),
    )


def _is_redriven(record: BrokerRecord) -> bool:
    routing = {} if record.routing is None else json.loads(record.routing)
    return "redriven" in routing.get("meta", {})


def load(run_id: str, tenant_id: str, text: str | None) -> RunState:
    """Return the state that was stored as text, or a new one."""
    kept = {} if text is None else json.loads(text)
    tries, letters = kept.get("tries", ()), kept.get("letters", ())
    return RunState(run_id, tenant_id, [Try(*one) for one in tries], [LetterNote(*one) for one in letters])


def dump(state: RunState) -> str:
    """Return the state as text to be stored."""
    members = {"run_id": state.run_id, "tenant_id": state.tenant_id, "tries": state.tries, "letters": state.letters}
    return json.dumps(members, ensure_ascii=False, separators=(",", ":"))
