"""Which messages belong to a run (http-v1 §22): an index of the newest steps, by run, in commit order.

A step is a message with a `run_id`. The copy of one that was dead-lettered is no step: it belongs to its origin, and
so does how often it was delivered before a group had it done, unless that was once. The index holds so many of all
three, in chunks: when it is full the oldest chunk goes, and a run that lost steps says so.

A checkpoint has the chunks (section `runs`, docs/formats/idempotency.md); what is behind it is told again when the log
is read. A chunk that is full never changes, so it is encoded once.
"""

from collections import deque
from typing import NamedTuple

from msgspec import Struct, msgpack

from driftq.engine.state.topic import Topic
from driftq.features.broker.protocols import Produced
from driftq.model.message import Message

_CHUNK_MAX = 1000
_CHUNKS_MIN = 10
"""The index is at least so many chunks, so that what goes at once is little."""


class IndexedStep(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A message of a run."""

    run_id: str
    tenant_id: str
    step_id: str
    parent_step_id: str
    topic: str
    partition: int
    offset: int
    ts: int


class RunLetter(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """The dead letter of a step."""

    origin_topic: str
    origin_offset: int
    topic: str
    partition: int
    offset: int
    group: str
    attempts: int
    last_error: str
    routed_at_ms: int


class StepEnding(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A step that a group had done after other than one delivery."""

    topic: str
    offset: int
    group: str
    attempts: int


class Trace(Struct):
    """What became of a step."""

    letters: list[RunLetter] = []
    attempts: dict[str, int] = {}
    """How often it was delivered to groups that have it done, where that was not once."""


class FoundRun(NamedTuple):
    """One run: its steps, what became of each, and whether older ones were left out."""

    steps: list[tuple[IndexedStep, Trace]]
    truncated: bool


class _Chunk(Struct, array_like=True, forbid_unknown_fields=True):
    steps: list[IndexedStep]
    letters: list[RunLetter]
    endings: list[StepEnding] = []

    @property
    def size(self) -> int:
        return len(self.steps) + len(self.letters) + len(self.endings)


class _Section(Struct, array_like=True, forbid_unknown_fields=True):
    chunks: list[bytes]
    truncated: list[str]
    """Runs that lost steps."""


class _Run:
    __slots__ = ("steps", "truncated")

    def __init__(self, *, truncated: bool) -> None:
        self.steps: deque[IndexedStep] = deque()
        self.truncated = truncated


class RunIndex:
    """The newest steps."""

    name = "runs"
    kinds: frozenset[int] = frozenset()

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._chunk_max = max(1, min(_CHUNK_MAX, entries_max // _CHUNKS_MIN))
        self._chunks: deque[_Chunk] = deque()
        self._encoded: deque[bytes] = deque()
        """Of all chunks but the last."""
        self._size = 0
        self._runs: dict[str, _Run] = {}
        self._steps: dict[tuple[str, int], Trace] = {}
        """What became of every step, by its place."""
        self._early: dict[tuple[str, int], list[RunLetter | StepEnding]] | None = {}
        """What became of steps that recovery has not told yet: topics are read one behind the other."""
        self._left_out: dict[str, None] = {}
        """Runs that lost all their steps, the last ones."""

    def __len__(self) -> int:
        return self._size

    def heard(self, found: Produced, message: Message) -> None:
        """A message was committed."""
        self.stored(found.topic, found.partition, found.offset, found.ts, message)

    def stored(self, topic: str, partition: int, offset: int, ts: int, message: Message) -> None:
        """A message was committed. Told again, when the log is read again, it changes nothing."""
        envelope = message.envelope
        if envelope is None or not envelope.run_id or not self._entries_max:
            return
        note = envelope.dlq
        if note is not None:
            self._add_letter(
                RunLetter(
                    *(note.original_topic, note.original_offset, topic, partition, offset),
                    *(note.group, note.attempts, note.last_error, note.routed_at_ms),
                )
            )
        elif (topic, offset) not in self._steps:
            names = (envelope.run_id, envelope.tenant_id, envelope.step_id, envelope.parent_step_id)
            self._add_step(IndexedStep(*names, topic, partition, offset, ts))

    def ended(self, topic: str, offset: int, group: str, attempts: int) -> None:
        """A group has a message done that was delivered so often. Told again it changes nothing."""
        self._add_ending(StepEnding(topic, offset, group, attempts))

    def opened(self) -> None:
        """Recovery has told all."""
        self._early = None

    def find(self, run_id: str, tenant_id: str | None = None) -> FoundRun | None:
        """The steps of a run, of one tenant or of all; None if there are none."""
        run = self._runs.get(run_id)
        if run is None:
            return None
        steps = [
            (step, self._steps[step.topic, step.offset])
            for step in run.steps
            if tenant_id is None or step.tenant_id == tenant_id
        ]
        return FoundRun(steps, run.truncated) if steps else None

    def _add_step(self, step: IndexedStep) -> None:
        run = self._runs.get(step.run_id)
        if run is None:
            truncated = step.run_id in self._left_out
            self._left_out.pop(step.run_id, None)
            run = self._runs[step.run_id] = _Run(truncated=truncated)
        run.steps.append(step)
        self._steps[step.topic, step.offset] = Trace()
        self._room().steps.append(step)
        for early in (self._early or {}).pop((step.topic, step.offset), ()):
            if isinstance(early, RunLetter):
                self._add_letter(early)
            else:
                self._add_ending(early)

    def _trace(self, place: tuple[str, int], news: RunLetter | StepEnding) -> Trace | None:
        """That of the step at a place; where there is none yet, the news wait for it."""
        trace = self._steps.get(place)
        if trace is None and self._early is not None:
            self._early.setdefault(place, []).append(news)
        return trace

    def _add_letter(self, letter: RunLetter) -> None:
        trace = self._trace((letter.origin_topic, letter.origin_offset), letter)
        if trace is None or letter in trace.letters:
            return
        trace.letters.append(letter)
        self._room().letters.append(letter)

    def _add_ending(self, ending: StepEnding) -> None:
        trace = self._trace((ending.topic, ending.offset), ending)
        if trace is None or trace.attempts.get(ending.group) == ending.attempts:
            return
        trace.attempts[ending.group] = ending.attempts
        self._room().endings.append(ending)

    def _room(self) -> _Chunk:
        """The chunk that takes one more."""
        if not self._chunks or self._chunks[-1].size >= self._chunk_max:
            if self._chunks:
                self._encoded.append(msgpack.encode(self._chunks[-1]))
            self._chunks.append(_Chunk([], [], []))
        self._size += 1
        if self._size > self._entries_max and len(self._chunks) > 1:
            self._drop(self._chunks.popleft())
            self._encoded.popleft()
        return self._chunks[-1]

    def _drop(self, chunk: _Chunk) -> None:
        self._size -= chunk.size
        for step in chunk.steps:
            run = self._runs[step.run_id]
            run.steps.popleft()
            run.truncated = True
            if not run.steps:
                del self._runs[step.run_id]
                self._left_out[step.run_id] = None
            del self._steps[step.topic, step.offset]
        for letter in chunk.letters:
            trace = self._steps.get((letter.origin_topic, letter.origin_offset))
            if trace is not None and letter in trace.letters:
                trace.letters.remove(letter)
        for ending in chunk.endings:
            trace = self._steps.get((ending.topic, ending.offset))
            if trace is not None:
                trace.attempts.pop(ending.group, None)
        while len(self._left_out) > self._entries_max:
            del self._left_out[next(iter(self._left_out))]

    # What the engine asks for

    def apply(self, kind: int, topic: Topic, ts: int, body: bytes) -> None:
        """It has no frames: messages tell all."""

    def capture(self) -> bytes:
        """The chunks."""
        last = [msgpack.encode(self._chunks[-1])] if self._chunks else []
        truncated = [name for name, run in self._runs.items() if run.truncated]
        return msgpack.encode(_Section([*self._encoded, *last], [*self._left_out, *truncated]))

    def restore(self, section: bytes) -> None:
        """And back, with as much room as there is now."""
        found = msgpack.decode(section, type=_Section)
        self._left_out = dict.fromkeys(found.truncated)
        for raw in found.chunks:
            chunk = msgpack.decode(raw, type=_Chunk)
            for step in chunk.steps:
                self._add_step(step)
            for letter in chunk.letters:
                self._add_letter(letter)
            for ending in chunk.endings:
                self._add_ending(ending)

    def forget(self, topic: Topic) -> None:
        """Topics of the broker are never deleted."""
