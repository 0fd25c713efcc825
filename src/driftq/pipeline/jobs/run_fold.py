"""What the log tells of an agent run, folded message by message: the state that Spark keeps for each run.

    a message with a run_id             a try of its step: the first one, one more, or a redriven one
    its copy in a dead-letter topic     the end of that try in one group, with its attempts and its last error

Invariants
- A message told twice changes nothing: it is known by its place in the log.
- A dead letter may come before its message, because they are read from two topics.
"""

from collections.abc import Iterable

from msgspec import Struct, json

from driftq.groups.names import log_name
from driftq.model.envelope import DlqNote, Routing

_PARTITION = "p"


class Letter(Struct, frozen=True, array_like=True):
    """A dead letter, by the place of what it is a copy of."""

    topic: str
    offset: int
    group: str
    attempts: int
    last_error: str
    routed_ms: int


class Try(Struct, frozen=True, array_like=True):
    """A message: one try of a step."""

    step_id: str
    parent_step_id: str
    topic: str
    partition: int
    offset: int
    ts_ms: int
    redriven: bool


class RunState(Struct, frozen=True):
    """One run, in the order in which it was read."""

    run_id: str
    tenant_id: str
    tries: list[Try] = []
    letters: list[Letter] = []


class _Envelope(Struct):
    """What lineage needs of an envelope."""

    run_id: str = ""
    step_id: str = ""
    parent_step_id: str = ""
    tenant_id: str = ""
    dlq: DlqNote | None = None


class Seen(Struct, frozen=True):
    """A record of a topic of the broker, as the job hands it on."""

    topic: str
    seq: int
    ts_ms: int
    tag: str | None
    envelope: str
    routing: str | None = None


def fold(state: RunState, seen: Iterable[Seen]) -> RunState:
    """A run with some more of its records."""
    tries = {(one.topic, one.offset): one for one in state.tries}
    letters = {(one.topic, one.offset, one.group): one for one in state.letters}
    for record in seen:
        envelope = json.decode(record.envelope, type=_Envelope)
        note = envelope.dlq
        if note is not None:
            letter = _letter(note)
            letters[letter.topic, letter.offset, letter.group] = letter
        else:
            one = _try(record, envelope)
            tries[one.topic, one.offset] = one
    return RunState(state.run_id, state.tenant_id, list(tries.values()), list(letters.values()))


def _letter(note: DlqNote) -> Letter:
    origin = log_name(note.original_topic)
    return Letter(origin, note.original_offset, note.group, note.attempts, note.last_error, note.routed_at_ms)


def _try(record: Seen, envelope: _Envelope) -> Try:
    routing = Routing() if record.routing is None else json.decode(record.routing, type=Routing)
    return Try(
        envelope.step_id,
        envelope.parent_step_id,
        record.topic,
        int(record.tag.removeprefix(_PARTITION)) if record.tag else 0,
        record.seq - 1,
        record.ts_ms,
        "redriven" in routing.meta,
    )


def load(run_id: str, tenant_id: str, text: str | None) -> RunState:
    """A state as it was kept, or a new one."""
    return RunState(run_id, tenant_id) if text is None else json.decode(text, type=RunState)


def dump(state: RunState) -> str:
    """A state to be kept."""
    return json.encode(state).decode()
