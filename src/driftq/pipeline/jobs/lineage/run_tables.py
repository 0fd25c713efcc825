"""Makes the rows of the tables `runs`, `steps` and `attempts` from the log and from the server's answers about a run.

The log has messages and dead letters. Only the server knows everything else about a message, and only for the newest
ones. Its earlier answers are kept (`Memory`), so a try that failed twice and then succeeded has its three attempts.

    step    dead: its last try is dead; done: its last try is done, or another step followed it; unknown: the server
            has forgotten its last try before that; else running
    run     dead if a step is dead; else running if a step is running; else unknown if a step is unknown; else done
    start   of a step: its first message; if only dead letters of it were read, the latest possible time
    end     of a step: its dead letter, the start of its last child, or the time when it was first seen done

Invariant: the server is asked again about every open run (`open`), however long the run has had no new records.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Literal

import pyarrow as pa
from msgspec import Struct, structs

from driftq.pipeline.jobs.lineage.run_fold import LetterNote, RunState, Try

Status = Literal["running", "done", "dead", "unknown"]
Place = tuple[str, int]

_TIME = pa.timestamp("ms", tz="UTC")
_KEY = [("tenant_id", pa.string()), ("run_id", pa.string())]

RUNS = pa.schema(
    [
        *_KEY,
        ("status", pa.string()),
        ("start", _TIME),
        ("end", _TIME),
        ("latency_ms", pa.int64()),
        ("steps", pa.int64()),
        ("attempts", pa.int64()),
        ("retries", pa.int64()),
        ("dead_steps", pa.int64()),
        ("last_error", pa.string()),
        ("critical_path", pa.string()),
        ("critical_path_ms", pa.int64()),
        ("open", pa.bool_()),
        ("detail", pa.string()),
    ]
)
"""One row for each run. `detail` is the `Memory` that the rows of the run were made of, as JSON."""

STEPS = pa.schema(
    [
        *_KEY,
        ("step_id", pa.string()),
        ("parent_step_id", pa.string()),
        ("topic", pa.string()),
        ("status", pa.string()),
        ("start", _TIME),
        ("end", _TIME),
        ("latency_ms", pa.int64()),
        ("attempts", pa.int64()),
        ("retries", pa.int64()),
        ("last_error", pa.string()),
        ("critical", pa.bool_()),
    ]
)
"""One row for each step. A message without a step_id is a step of its own, named after its topic and offset."""

ATTEMPTS = pa.schema(
    [
        *_KEY,
        ("step_id", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int64()),
        ("offset", pa.int64()),
        ("group", pa.string()),
        ("kind", pa.string()),
        ("status", pa.string()),
        ("deliveries", pa.int64()),
        ("start", _TIME),
        ("end", _TIME),
        ("last_error", pa.string()),
    ]
)
"""One row for each message of a run and each group that has it. `kind` is `first`, `again` or `redriven`."""

RUN_KEYS = ["tenant_id", "run_id"]
STEP_KEYS = [*RUN_KEYS, "step_id"]
ATTEMPT_KEYS = [*RUN_KEYS, "topic", "offset", "group"]


class MessageStatus(Struct, frozen=True):
    """Status of a message in a group, from the server's answers."""

    group: str
    state: str
    attempts: int
    last_error: str = ""
    done_ms: int | None = None
    """When the message was first seen done (Unix ms); for a dead one, when its dead letter was written."""


class Memory(Struct, frozen=True):
    """Everything that is known of a run."""

    state: RunState
    standings: dict[str, list[MessageStatus]] = {}
    """Status in each group, by the place of a message as text."""
    lost: list[str] = []
    """Places of messages that were missing in the server's last answer."""


def place_text(topic: str, offset: int) -> str:
    """Return a place as text, for use as a JSON key."""
    return f"{topic}#{offset}"


def remember(memory: Memory, told: Mapping[Place, list[MessageStatus]], now_ms: int) -> Memory:
    """Add the server's answer to what is known. A message that the answer lacks is forgotten by the server.

    The server knows a message before any reader can see it, so a missing message is never too new.
    """
    known = dict(memory.standings)
    for (topic, offset), groups in told.items():
        text = place_text(topic, offset)
        before = {one.group: one for one in known.get(text, ())}
        fresh = {one.group: _newer(before.get(one.group), one, now_ms) for one in groups}
        known[text] = list({**before, **fresh}.values())
    lost = [place_text(one.topic, one.offset) for one in memory.state.tries if (one.topic, one.offset) not in told]
    return structs.replace(memory, standings=known, lost=lost)


def _newer(before: MessageStatus | None, now: MessageStatus, now_ms: int) -> MessageStatus:
    """Merge the earlier and the current status.

    For a done message the server always reports one attempt, so the earlier count is used. If a dead message becomes
    done, the server has forgotten its dead letter, and it stays dead.
    """
    if before is not None and (before.state, now.state) == ("dead", "done"):
        return before
    attempts = max(now.attempts, before.attempts if before else 0)
    if now.state == "done" and before is not None and before.state not in ("done", "dead") and before.attempts:
        attempts = max(attempts, before.attempts + (before.state == "waiting"))
    done_ms = now_ms if now.state == "done" else now.done_ms
    if before is not None and before.state == now.state == "done":
        done_ms = before.done_ms
    error = now.last_error or (before.last_error if before else "")
    return MessageStatus(now.group, now.state, attempts, error, done_ms)


class _Attempt(Struct):
    one: Try
    group: str
    status: str
    deliveries: int
    end_ms: int | None
    last_error: str


class _Step(Struct):
    step_id: str
    parent_step_id: str
    attempts: list[_Attempt]
    start_ms: int
    status: Status = "running"
    end_ms: int | None = None
    critical: bool = False

    @property
    def retries(self) -> int:
        """Number of deliveries after the first of each try and group, plus tries after the first."""
        tries = {(attempt.one.topic, attempt.one.offset) for attempt in self.attempts}
        again = sum(max(0, attempt.deliveries - 1) for attempt in self.attempts)
        return again + len(tries) - 1

    @property
    def deliveries(self) -> int:
        return sum(attempt.deliveries for attempt in self.attempts)

    @property
    def last_error(self) -> str:
        return next((attempt.last_error for attempt in reversed(self.attempts) if attempt.last_error), "")


class RunRows(Struct, frozen=True):
    """The rows of one run in the three tables."""

    run: dict[str, Any]
    steps: list[dict[str, Any]]
    attempts: list[dict[str, Any]]


def rows_of(memory: Memory, detail: str) -> RunRows:
    """Return the rows of a run."""
    steps = _steps(memory)
    path = _critical_path(steps)
    state = memory.state
    key = {"tenant_id": state.tenant_id, "run_id": state.run_id}
    return RunRows(
        {**key, **_run_row(steps, path), "detail": detail},
        [{**key, **_step_row(step)} for step in steps.values()],
        [{**key, **row} for step in steps.values() for row in _attempt_rows(step)],
    )


def _steps(memory: Memory) -> dict[str, _Step]:
    letters: dict[Place, dict[str, LetterNote]] = defaultdict(dict)
    for letter in memory.state.letters:
        letters[letter.topic, letter.offset][letter.group] = letter
    steps: dict[str, _Step] = {}
    for one in sorted(_tries(memory.state), key=lambda one: (one.ts_ms, one.topic, one.offset)):
        step_id = one.step_id or place_text(one.topic, one.offset)
        step = steps.setdefault(step_id, _Step(step_id, one.parent_step_id, [], one.ts_ms))
        known = memory.standings.get(place_text(one.topic, one.offset), [])
        step.attempts.extend(_attempts(one, known, letters.get((one.topic, one.offset), {})))
    children = defaultdict(list)  # type: dict[str, list[_Step]]
    for step in steps.values():
        if step.parent_step_id != step.step_id:
            children[step.parent_step_id].append(step)
    lost = set(memory.lost)
    for step in steps.values():
        last = step.attempts[-1].one
        _judge(step, children[step.step_id], forgotten=place_text(last.topic, last.offset) in lost)
    return steps


def _tries(state: RunState) -> list[Try]:
    """Return the messages that were read, and those of which only dead letters were read."""
    tries = {(one.topic, one.offset): one for one in state.tries}
    for letter in sorted(state.letters, key=lambda letter: letter.routed_ms):
        place = (letter.topic, letter.offset)
        if place not in tries:
            tries[place] = _died_unread(letter, state.tries)
    return list(tries.values())


def _died_unread(letter: LetterNote, read: list[Try]) -> Try:
    """Return the message of a dead letter. It is older than the letter and than every later message of its topic."""
    behind = [one.ts_ms for one in read if one.topic == letter.topic and one.offset > letter.offset]
    return Try(
        letter.step_id,
        letter.parent_step_id,
        letter.topic,
        letter.partition,
        letter.offset,
        min([letter.routed_ms, *behind]),
        letter.redriven,
    )


def _attempts(one: Try, known: list[MessageStatus], letters: Mapping[str, LetterNote]) -> list[_Attempt]:
    found = [
        _Attempt(one, letter.group, "dead", letter.attempts, letter.routed_ms, letter.last_error)
        for letter in letters.values()
    ]
    found += [
        _Attempt(one, standing.group, standing.state, standing.attempts, standing.done_ms, standing.last_error)
        for standing in known
        if standing.group not in letters
    ]
    return found or [_Attempt(one, "", "ready", 0, None, "")]


def _judge(step: _Step, children: list[_Step], *, forgotten: bool) -> None:
    """Set status and end of a step. Its last try decides, over all groups that have it."""
    last = step.attempts[-1].one
    states = {attempt.status for attempt in step.attempts if attempt.one is last}
    ends = [attempt.end_ms for attempt in step.attempts if attempt.one is last and attempt.end_ms is not None]
    followed = max((child.start_ms for child in children), default=None)
    if "dead" in states:
        step.status, step.end_ms = "dead", max(ends, default=None)
    elif states == {"done"}:
        step.status, step.end_ms = "done", followed if followed is not None else max(ends)
    elif followed is not None:
        step.status, step.end_ms = "done", followed
    elif forgotten:
        step.status = "unknown"


def _critical_path(steps: dict[str, _Step]) -> list[_Step]:
    """Return the steps from the origin of the step that ends last to that step, in order of time.

    Of steps with the same times, the one with the most ancestors is the last: a step never ends before its parent.
    """
    if not steps:
        return []
    times = {name: (step.end_ms or step.start_ms, step.start_ms) for name, step in steps.items()}
    newest = max(times.values())
    last = [step for name, step in steps.items() if times[name] == newest]
    at: _Step | None = last[0] if len(last) == 1 else max(last, key=lambda step: _depth(steps, step))
    path: list[_Step] = []
    while at is not None and not at.critical:
        at.critical = True
        path.append(at)
        at = steps.get(at.parent_step_id)
    return path[::-1]


def _depth(steps: dict[str, _Step], step: _Step) -> int:
    """Return the number of ancestors of a step, each counted once."""
    seen: set[str] = set()
    at = steps.get(step.parent_step_id)
    while at is not None and at.step_id not in seen:
        seen.add(at.step_id)
        at = steps.get(at.parent_step_id)
    return len(seen)


def _run_row(steps: dict[str, _Step], path: list[_Step]) -> dict[str, Any]:
    statuses = {step.status for step in steps.values()}
    status = next((one for one in ("dead", "running", "unknown") if one in statuses), "done")
    start = min((step.start_ms for step in steps.values()), default=None)
    ends = [step.end_ms or step.start_ms for step in steps.values()]
    end = max(ends) if ends and "running" not in statuses else None
    last = path[-1].end_ms or path[-1].start_ms if path else None
    return {
        "status": status,
        "start": start,
        "end": end,
        "latency_ms": None if end is None or start is None else end - start,
        "steps": len(steps),
        "attempts": sum(step.deliveries for step in steps.values()),
        "retries": sum(step.retries for step in steps.values()),
        "dead_steps": sum(step.status == "dead" for step in steps.values()),
        "last_error": next((step.last_error for step in reversed(steps.values()) if step.last_error), ""),
        "critical_path": " > ".join(step.step_id for step in path),
        "critical_path_ms": None if last is None else last - path[0].start_ms,
        "open": "running" in statuses,
    }


def _step_row(step: _Step) -> dict[str, Any]:
    return {
        "step_id": step.step_id,
        "parent_step_id": step.parent_step_id,
        "topic": step.attempts[0].one.topic,
        "status": step.status,
        "start": step.start_ms,
        "end": step.end_ms,
        "latency_ms": None if step.end_ms is None else step.end_ms - step.start_ms,
        "attempts": step.deliveries,
        "retries": step.retries,
        "last_error": step.last_error,
        "critical": step.critical,
    }


def _attempt_rows(step: _Step) -> list[dict[str, Any]]:
    first = step.attempts[0].one
    return [
        {
            "step_id": step.step_id,
            "topic": attempt.one.topic,
            "partition": attempt.one.partition,
            "offset": attempt.one.offset,
            "group": attempt.group,
            "kind": "redriven" if attempt.one.redriven else "first" if attempt.one is first else "again",
            "status": attempt.status,
            "deliveries": attempt.deliveries,
            "start": attempt.one.ts_ms,
            "end": attempt.end_ms,
            "last_error": attempt.last_error,
        }
        for attempt in step.attempts
        if attempt.group
    ]
