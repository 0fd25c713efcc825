"""Redrive (http-v1 §22): moves dead letters back to the topic where they failed, as a job with status and cancel.

    asked → letters counted → running → done, cancelled or failed

A letter is moved in three steps, each durable before the next: a copy in the original topic, a record of the move in
`audit.redrive`, and the retirement of the letter, which makes it done for every group. A crash between the steps moves
the letter again and never loses it; a retired letter is not found again. Jobs are kept in memory: after a restart a
job has to be started again.

Invariants
- No letter belongs to two jobs.
- A job stores the offsets of its letters, not the letters.
"""

import logging
from array import array
from collections.abc import Callable
from math import ceil
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct, json, structs

from driftq.errors import DriftQError, InvalidRequestError, NotFoundError, ShuttingDownError, ThrottledError
from driftq.features.broker.protocols import Produced
from driftq.model.message import DlqNote, Envelope, Message, Routing
from driftq.model.names import DLQ
from driftq.system.entropy import Entropy
from driftq.system.runtime import Pending, Runtime, Timer, run

_log = logging.getLogger(__name__)

AUDIT = "audit.redrive"
_PAGE = 256
_AT_ONCE = 16
"""How many letters are moved before other work gets a turn, if no step has to wait."""
_JOBS_MAX = 1000
"""How many jobs are remembered; those that ended are dropped first."""
_RUNNING_MAX = 16
_ID_BYTES = 8
_SLEEP_MS_MAX = 86_400_000


class WaitingLetter(NamedTuple):
    """A message of a dead-letter topic that is not retired."""

    partition: int
    offset: int
    message: Message


class RedriveTopics(Protocol):
    """The topics of the broker, as a redrive uses them."""

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic. Raise InvalidRequestError if the topic does not exist."""
        ...

    def has(self, topic: str) -> bool:
        """Whether a topic with this name exists."""
        ...

    def read(self, topic: str, offset: int, limit: int) -> Pending[tuple[list[WaitingLetter], int | None]]:
        """Return up to `limit` messages from an offset on that are not retired, and the next offset if
        there are more.
        """
        ...

    def deposit(self, topic: str, message: Message, *, partition: int | None = None) -> Pending[Produced]:
        """Store a message without asking hook, idempotency and limits. The topic is created if needed."""
        ...

    def retire(self, topic: str, letter: WaitingLetter) -> Pending[None]:
        """Record that a message is done for every group, including future ones."""
        ...


class Filter(Struct, frozen=True, forbid_unknown_fields=True):
    """Which letters to move. A field that is not set matches every letter."""

    tenant_id: str | None = None
    reason_contains: str | None = None
    run_id: str | None = None
    before_ms: int | None = None
    after_ms: int | None = None
    offsets: list[int] | None = None
    """Offsets in the dead-letter topic."""

    def takes(self, envelope: Envelope, note: DlqNote) -> bool:
        """Whether a letter with this envelope and note matches."""
        return (
            self.tenant_id in (None, envelope.tenant_id)
            and self.run_id in (None, envelope.run_id)
            and (self.reason_contains is None or self.reason_contains in note.last_error)
            and (self.before_ms is None or note.routed_at_ms < self.before_ms)
            and (self.after_ms is None or note.routed_at_ms >= self.after_ms)
        )


class RunningRedrive(Struct):
    """The state of one redrive job."""

    id: str
    topic: str
    matched: int
    rate: float | None
    started_ms: int
    state: Literal["running", "done", "cancelled", "failed"] = "running"
    moved: int = 0
    failed: int = 0


class _Move(Struct, frozen=True):
    """The record of a move in `audit.redrive`."""

    job_id: str
    topic: str
    partition: int
    offset: int
    dlq_topic: str
    dlq_partition: int
    dlq_offset: int
    group: str
    at_ms: int


class Redriver:
    """All redrive jobs of this run of the server."""

    def __init__(
        self,
        letters: RedriveTopics,
        runtime: Runtime,
        entropy: Entropy,
        now: Callable[[], int],
        wall: Callable[[], int],
    ) -> None:
        """Set the clocks: `now` controls the rate of a job, `wall` is the time of day to show; both in milliseconds."""
        self._letters = letters
        self._runtime = runtime
        self._entropy = entropy
        self._now = now
        self._wall = wall
        self._jobs: dict[str, RunningRedrive] = {}
        self._taken: dict[str, set[int]] = {}
        """Offsets of letters that belong to a running job, by their topic."""
        self._sleeping: dict[str, tuple[Pending[None], Timer]] = {}
        """Jobs that wait between two moves, by job id."""

    def ask(
        self,
        topic: str,
        wanted: Filter,
        *,
        group: str | None = None,
        limit: int | None = None,
        rate_per_s: float | None = None,
        dry_run: bool = False,
    ) -> Pending[RunningRedrive | int]:
        """Start a job; in a dry run, return how many letters it would move. Raise a DriftQError."""
        self._letters.partitions(topic)
        for name, value in (("limit", limit), ("rate_per_s", rate_per_s)):
            if value is not None and not value > 0:
                raise InvalidRequestError(f"{name} is {value}; it must be above 0")
        if sum(job.state == "running" for job in self._jobs.values()) >= _RUNNING_MAX and not dry_run:
            raise ThrottledError(
                f"{_RUNNING_MAX} redrives are running, which is the limit; wait until one ends, or cancel one",
                retry_after_ms=1000,
            )
        return run(self._begin(topic, wanted, group, limit, rate_per_s, dry_run=dry_run))

    def job(self, job_id: str) -> RunningRedrive:
        """Return the state of a job. Raise NotFoundError."""
        found = self._jobs.get(job_id)
        if found is None:
            raise NotFoundError("there is no such redrive")
        return found

    def cancel(self, job_id: str) -> RunningRedrive:
        """Stop a job before its next move. Raise NotFoundError."""
        found = self.job(job_id)
        if found.state == "running":
            found.state = "cancelled"
            self._wake(job_id)
        return found

    async def _begin(
        self, topic: str, wanted: Filter, group: str | None, limit: int | None, rate: float | None, *, dry_run: bool
    ) -> RunningRedrive | int:
        offsets = await self._find(topic, wanted, group, limit)
        if dry_run:
            return len(offsets)
        # Another job may have taken some of the letters during the search.
        taken = self._taken.setdefault(topic, set())
        offsets = array("q", [offset for offset in offsets if offset not in taken])
        job = RunningRedrive(self._entropy.token(_ID_BYTES).hex(), topic, len(offsets), rate, self._wall())
        self._remember(job)
        taken.update(offsets)
        run(self._work(job, offsets))
        return job

    async def _find(self, topic: str, wanted: Filter, group: str | None, limit: int | None) -> "array[int]":
        found = array("q")
        asked = None if wanted.offsets is None else sorted(set(wanted.offsets), reverse=True)
        place: int | None = None
        if self._letters.has(DLQ + topic):
            place = 0 if asked is None else asked.pop()
        while place is not None and (limit is None or len(found) < limit):
            page, after = await self._letters.read(DLQ + topic, place, _PAGE if asked is None else 1)
            found.extend(letter.offset for letter in page if self._matches(topic, letter, wanted, group))
            place = after if asked is None else asked.pop() if asked else None
            if place is not None:
                await self._turn()
        return found[:limit]

    def _turn(self) -> Pending[None]:
        """Wait for one turn of the event loop, so that other work can run: there may be a million letters."""
        over: Pending[None] = Pending()
        self._runtime.soon(lambda: over.resolve(None))
        return over

    def _matches(self, topic: str, letter: WaitingLetter, wanted: Filter, group: str | None) -> bool:
        envelope = letter.message.envelope
        if envelope is None or envelope.dlq is None or letter.offset in self._taken.get(topic, ()):
            return False
        note = envelope.dlq
        return note.original_topic == topic and group in (None, note.group) and wanted.takes(envelope, note)

    def _remember(self, job: RunningRedrive) -> None:
        self._jobs[job.id] = job
        ended = [known.id for known in self._jobs.values() if known.state != "running"]
        for known in ended[: max(0, len(self._jobs) - _JOBS_MAX)]:
            del self._jobs[known]

    # Moving letters

    async def _work(self, job: RunningRedrive, offsets: "array[int]") -> None:
        try:
            due: float = self._now()
            for number, offset in enumerate(offsets):
                if number and number % _AT_ONCE == 0:
                    await self._turn()
                while job.state == "running" and (wait_ms := due - self._now()) > 0:
                    await self._sleep(job, ceil(min(wait_ms, _SLEEP_MS_MAX)))
                if job.rate is not None:
                    due = max(due, self._now() - 1) + 1000 / job.rate
                if job.state != "running":
                    return
                await self._move_or_count(job, offset)
            job.state = "done"
        except ShuttingDownError:
            job.state = "failed"
        except Exception:  # noqa: BLE001  # a bug ends one job, not the server
            job.state = "failed"
            _log.exception("the redrive %s failed", job.id)
        finally:
            self._taken[job.topic].difference_update(offsets)

    def _sleep(self, job: RunningRedrive, delay_ms: int) -> Pending[None]:
        """Wait for `delay_ms`. A cancel ends the wait, so that the letters of the job are free at once."""
        over: Pending[None] = Pending()
        self._sleeping[job.id] = over, self._runtime.later(delay_ms, lambda: self._wake(job.id))
        return over

    def _wake(self, job_id: str) -> None:
        sleeping = self._sleeping.pop(job_id, None)
        if sleeping is not None:
            over, timer = sleeping
            timer.cancel()
            over.resolve(None)

    async def _move_or_count(self, job: RunningRedrive, offset: int) -> None:
        try:
            moved = await self._move(job, offset)
        except ShuttingDownError:
            raise
        except DriftQError:
            moved = False
        if moved:
            job.moved += 1
        else:
            job.failed += 1

    async def _move(self, job: RunningRedrive, offset: int) -> bool:
        dlq = DLQ + job.topic
        page, _ = await self._letters.read(dlq, offset, 1)
        if not page or page[0].offset != offset:
            return False  # it was retired, or its bytes are lost
        letter = page[0]
        envelope = letter.message.envelope
        assert envelope is not None
        note = envelope.dlq
        assert note is not None
        count = self._letters.partitions(job.topic)
        partition = None if letter.message.key or note.original_partition >= count else note.original_partition
        copied = await self._letters.deposit(job.topic, redriven(letter.message, job.id), partition=partition)
        to, now = (copied.partition, copied.offset), self._wall()
        move = _Move(job.id, job.topic, *to, dlq, letter.partition, offset, note.group, now)
        await self._letters.deposit(AUDIT, Message(json.encode(move).decode(), job.topic))
        await self._letters.retire(dlq, letter)
        return True


def redriven(letter: Message, job_id: str) -> Message:
    """Return the message that a dead letter was made of, marked with the id of the redrive."""
    known = letter.envelope or Envelope()
    envelope: Envelope | None = structs.replace(known, dlq=None, redrive_policy=None, retry_policy=known.redrive_policy)
    routing = letter.routing or Routing()
    marked = Routing(routing.label, {**routing.meta, "redriven": job_id})
    return Message(letter.value, letter.key, None if envelope == Envelope() else envelope, marked)
