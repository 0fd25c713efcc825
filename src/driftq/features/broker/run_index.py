"""The index of runs (http-v1 §22): the newest steps, by run, in commit order.

A step is a message with a `run_id`. The dead-letter copy of a step is not a step: it belongs to its original. So does
the number of deliveries after which a group had the step done, unless that was one. The index holds up to
`entries_max` steps, letters and endings together, in chunks. When it is full, the oldest chunk is dropped, and a run
that lost steps is marked as truncated.

A checkpoint contains the chunks (section `runs`, docs/formats/idempotency.md); later messages come from the log. A
full chunk never changes, so it is encoded once.
"""

from collections import deque
from typing import NamedTuple

from msgspec import Struct, msgpack

from driftq.engine.state.topic import Topic
from driftq.features.broker.protocols import Produced
from driftq.model.message import Message

_CHUNK_MAX = 1000
_CHUNKS_MIN = 10
"""The minimum number of chunks in a full index, so that a dropped chunk is a small part of it."""


class IndexedStep(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A message that belongs to a run."""

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
    """A step that a group had done after a number of deliveries other than one."""

    topic: str
    offset: int
    group: str
    attempts: int


class Trace(Struct):
    """The dead letters and delivery counts of a step."""

    letters: list[RunLetter] = []
    attempts: dict[str, int] = {}
    """The number of deliveries by group, for groups that have the step done after a number other than one."""


class FoundRun(NamedTuple):
    """One run: its steps, the trace of each, and whether older steps were dropped."""

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
    """The ids of runs that lost steps."""


class _Run:
    __slots__ = ("steps", "truncated")

    def __init__(self, *, truncated: bool) -> None:
        self.steps: deque[IndexedStep] = deque()
        self.truncated = truncated


class RunIndex:
    """The newest steps of all runs."""

    name = "runs"
    kinds: frozenset[int] = frozenset()

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._chunk_max = max(1, min(_CHUNK_MAX, entries_max // _CHUNKS_MIN))
        self._chunks: deque[_Chunk] = deque()
        self._encoded: deque[bytes] = deque()
        """The encoded chunks, except the last one."""
        self._size = 0
        self._runs: dict[str, _Run] = {}
        self._steps: dict[tuple[str, int], Trace] = {}
        """The trace of every step, by topic and offset."""
        self._early: dict[tuple[str, int], list[RunLetter | StepEnding]] | None = {}
        """Letters and endings of steps that recovery has not found yet, because it reads one topic after the other."""
        self._left_out: dict[str, None] = {}
        """The last runs that lost all their steps."""

    def __len__(self) -> int:
        return self._size

    def heard(self, found: Produced, message: Message) -> None:
        """Add a committed message, as a listener of the broker."""
        self.stored(found.topic, found.partition, found.offset, found.ts, message)

    def stored(self, topic: str, partition: int, offset: int, ts: int, message: Message) -> None:
        """Add a committed message, if it belongs to a run. Idempotent, so replay may call it again."""
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
        """Record that a group has a message done after this number of deliveries. Idempotent."""
        self._add_ending(StepEnding(topic, offset, group, attempts))

    def opened(self) -> None:
        """Finish recovery: all messages were found."""
        self._early = None

    def find(self, run_id: str, tenant_id: str | None = None) -> FoundRun | None:
        """Return the steps of a run, of one tenant or of all; None if there are none."""
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
        """Return the trace of a step; if recovery has not found the step yet, keep `news` for later."""
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
        """Return the chunk for one more entry, and drop the oldest chunk if the index is full."""
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

    # Calls from the engine

    def apply(self, kind: int, topic: Topic, ts: int, body: bytes) -> None:
        """Do nothing: the index has no frames, and messages contain all its data."""

    def capture(self) -> bytes:
        """Return the checkpoint section with all chunks."""
        last = [msgpack.encode(self._chunks[-1])] if self._chunks else []
        truncated = [name for name, run in self._runs.items() if run.truncated]
        return msgpack.encode(_Section([*self._encoded, *last], [*self._left_out, *truncated]))

    def restore(self, section: bytes) -> None:
        """Restore the chunks of a checkpoint, as far as the current limit allows."""
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
        """Do nothing: topics of the broker are never deleted."""
