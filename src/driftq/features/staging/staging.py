"""Staged writes (http-v0 §22.5): durable, invisible parts, and the commits that publish them.

A part     written and synced → waiting, at its address → replaced by another at the same address
                                                        → expired, dropped, or gone with its topic
                                                        → published
A commit   one at a time per writer: parts found → read from their files → published (`engine/write/publisher`), which
           remembers batch and seqs of the writer in the same step → its Commit frame synced → the files removed

A part's address is its topic, writer, batch, part, attempt and chunk. The last batch of every writer is kept as long
as its topic, in the log and in the checkpoint's section `staging`. That batch and earlier ones are never published
again. So every step may be repeated after any crash: until the Commit frame is on stable storage the parts still
exist, and after that the batch is known. A writer with a drawn name writes once: it is forgotten when it was not used
for as long as a part is kept, counted anew after a restart.

Invariants
- A waiting part counts once against the server's bytes (`Quota.reserved`), until its records belong to the topic.
- A file is removed only when no request can need it any more. If a crash restores such a file, `open` removes it.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct, msgpack

from driftq.engine.engine import Engine
from driftq.engine.state.catalog import check_epoch
from driftq.engine.state.control_frames import COMMIT, CommitBody, WriterTag
from driftq.engine.state.topic import Topic
from driftq.engine.write.appender import AppendResult
from driftq.errors import (
    BatchTooLargeError,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    StageIncompleteError,
    TopicNotFoundError,
)
from driftq.features.staging.part_thread import StageFiles
from driftq.features.staging.staged_parts import Owner, PartAddress, Parts, StagedPart
from driftq.model.limits import COMMIT_BYTES_MAX, WRITER_BYTES_MAX
from driftq.storage.blocks.rows import Rows
from driftq.storage.layout import Layout
from driftq.storage.no_space import write_error
from driftq.storage.part_file import PartHead
from driftq.system.runtime import Pending, Runtime, Timer, run

_TICK_MS = 1000
_DRAWN = re.compile(r"batch:[0-9a-f]{32}")
"""Names that a client draws at random for one write."""


class PartRef(NamedTuple):
    """A part as a commit names it: its chunks are 0 to `chunks` - 1."""

    part: int
    attempt: int
    chunks: int


class LastBatch(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The newest batch that a writer has published, and its seqs."""

    batch: int
    first: int
    last: int


class StageResult(Struct, frozen=True):
    """The answer to a staged part."""

    records: int
    payload: int
    expires_ts: int


class CommitResult(Struct, frozen=True):
    """The answer to a commit."""

    seqs: range | None
    """None for a batch before the writer's last one, because its seqs are not kept."""
    head_seq: int
    deduped: bool
    sync_ns: int = 0


class Staging:
    """The parts and writers of all topics."""

    name = "staging"
    kinds = frozenset((COMMIT,))

    def __init__(self, ttl_ms: int) -> None:
        self._ttl_ms = ttl_ms
        self._writers: dict[int, dict[str, LastBatch]] = {}
        self._parts = Parts()
        self._published: dict[tuple[int, str, int], list[int]] = {}
        """Files of published parts that are not removed yet, by topic id, writer and batch."""
        self._committing: dict[Owner, Pending[None]] = {}
        self.repeated = 0
        """Number of commits since the start whose batch was published before."""
        self._drawn: OrderedDict[Owner, int] = OrderedDict()
        """When each writer with a drawn name was used last, oldest first."""
        self._next_number = 1
        self._timer: Timer | None = None
        self._engine: Engine
        self._files: StageFiles
        self._runtime: Runtime

    def open(self, engine: Engine, runtime: Runtime, layout: Layout) -> None:
        """Find the staged parts after the log was replayed, and remove files that no request can need."""
        self._engine = engine
        self._runtime = runtime
        self._parts.quota = engine.quota
        layout.prepare_stage()
        self._files = StageFiles(runtime, layout)
        superfluous = []
        for number, found in self._files.found():
            self._next_number = number + 1
            if found is None or found.topic_id not in engine.catalog.by_id:
                superfluous.append(number)
                continue
            head = found.head
            address = PartAddress(head.batch, head.part, head.attempt, head.chunk)
            part = StagedPart(number, (found.topic_id, head.writer), address, head.payload, head.staged_ts)
            last = self._writers.get(found.topic_id, {}).get(head.writer)
            if last is not None and head.batch <= last.batch:
                superfluous.append(number)
            else:
                superfluous += self._install(part)
        self._remove(superfluous)
        for topic_id, writers in self._writers.items():
            for writer in writers:
                self._used((topic_id, writer))
        self._expire()

    def close(self) -> None:
        """Stop the timer and the thread."""
        if self._timer is not None:
            self._timer.cancel()
        self._files.close()

    # Parts

    def stage(self, name: str, writer: str, address: PartAddress, rows: Rows) -> Pending[StageResult]:
        """Stage a part. It replaces an earlier one at its address."""
        check_writer(writer)
        self._engine.check_open()
        topic = self._engine.topic(name)
        self._engine.change_log.space.check()
        self._expire()
        owner = (topic.id, writer)
        before = self._parts.of(owner).get(address)
        payload = rows.payload_bytes
        self._engine.quota.check(payload - (before.payload if before is not None else 0))
        self._engine.quota.reserved += payload
        part = StagedPart(self._next_number, owner, address, payload, self._engine.time.running())
        self._next_number += 1
        answer: Pending[StageResult] = Pending()

        def done(error: OSError | None) -> None:
            self._engine.quota.reserved -= payload
            if error is None and not topic.gone:
                self._remove(self._install(part))
                answer.resolve(StageResult(rows.count, payload, self._engine.time.shown(part.staged_ts + self._ttl_ms)))
                return
            self._remove([part.number])
            if error is not None:
                answer.fail(write_error("the part could not be stored", error))
            else:
                answer.fail(TopicNotFoundError(name))

        head = PartHead(writer, *address, part.staged_ts, rows.count, payload)
        self._files.write(part.number, topic.id, head, rows, done)
        return answer

    def drop(self, name: str, writer: str) -> Pending[int]:
        """Drop all parts of a writer. The answer is how many there were."""
        self._engine.check_open()
        topic = self._engine.topic(name)
        parts = list(self._parts.of((topic.id, writer)).values())
        answer: Pending[int] = Pending()

        def done(error: OSError | None) -> None:
            if error is None:
                answer.resolve(len(parts))
            else:
                answer.fail(InternalError(f"the parts could not be removed: {error.strerror}"))

        self._files.drop(self._parts.take(parts), done)
        return answer

    def _install(self, part: StagedPart) -> list[int]:
        """Add a part that is on disk. Return the number of the file that is not needed any more."""
        self._used(part.owner)
        self._watch()
        return self._parts.install(part)

    def _used(self, owner: Owner) -> None:
        """Note when a writer with a drawn name was used."""
        if _DRAWN.fullmatch(owner[1]) is not None:
            self._drawn[owner] = self._engine.time.running()
            self._drawn.move_to_end(owner)
            self._watch()

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = self._runtime.later(_TICK_MS, self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            self._expire()
        finally:
            if len(self._parts) or self._drawn:
                self._watch()

    def _expire(self) -> None:
        # Parts of a writer with a running commit stay: if the commit is lost, its retry needs them.
        expired = self._parts.expired(self._engine.time.running() - self._ttl_ms, self._committing)
        self._remove(self._parts.take(expired))
        while self._drawn:
            owner, used = next(iter(self._drawn.items()))
            if used > self._engine.time.running() - self._ttl_ms:
                return
            if owner in self._committing:
                self._used(owner)
                continue
            del self._drawn[owner]
            self._writers.get(owner[0], {}).pop(owner[1], None)

    def _remove(self, numbers: list[int]) -> None:
        if numbers:
            self._files.remove(numbers)

    # Commits

    def commit(
        self, name: str, writer: str, batch: int, parts: Sequence[PartRef], epoch: int | None = None
    ) -> Pending[CommitResult]:
        """Publish parts together, unless this batch or a later one of this writer was published."""
        check_writer(writer)
        if not parts:
            raise InvalidRequestError("parts is empty")
        if any(part.chunks < 1 for part in parts):
            raise InvalidRequestError("chunks must be at least 1")
        return run(self._commit(name, writer, batch, parts, epoch))

    def writer(self, name: str, writer: str) -> LastBatch:
        """Return the last batch of a writer. Raise NotFoundError or TopicNotFoundError."""
        found = self._writers.get(self._engine.topic(name).id, {}).get(writer)
        if found is None:
            writer = writer[:WRITER_BYTES_MAX]
            raise NotFoundError(
                f"writer {writer!r} has committed no batch in topic {name!r}; a staged batch counts after its commit"
            )
        return found

    async def _commit(
        self, name: str, writer: str, batch: int, parts: Sequence[PartRef], epoch: int | None
    ) -> CommitResult:
        self._engine.check_open()
        topic = self._engine.topic(name)
        check_epoch(topic, epoch)
        while (turn := self._committing.get((topic.id, writer))) is not None:
            await turn
        if topic.gone:
            raise TopicNotFoundError(name)
        last = self._writers.get(topic.id, {}).get(writer)
        if last is not None and batch <= last.batch:
            return self._known(topic, writer, batch, last)
        over = self._committing[topic.id, writer] = Pending[None]()
        try:
            done = await self._publish(topic, writer, batch, self._named(topic, writer, batch, parts))
        finally:
            del self._committing[topic.id, writer]
            over.resolve(None)
            self._used((topic.id, writer))
        return CommitResult(range(done.first_seq, done.last_seq + 1), done.head_seq, False, done.sync_ns)

    def _known(self, topic: Topic, writer: str, batch: int, last: LastBatch) -> CommitResult:
        """Answer for a batch that was published before. Parts staged again for it are removed after the next sync."""
        self.repeated += 1
        shard = self._engine.change_log.shard_of(topic)
        again = self._parts.take(self._parts.up_to((topic.id, writer), last.batch))
        self._engine.synced.after(shard, shard.last_number, lambda: self._remove(again))
        if batch == last.batch:
            return CommitResult(range(last.first, last.last + 1), last.last, True)
        return CommitResult(None, topic.head, True)

    def _named(self, topic: Topic, writer: str, batch: int, parts: Sequence[PartRef]) -> list[StagedPart]:
        """Return the parts that a commit names, in its order. Raise StageIncompleteError if one is missing."""
        self._expire()
        waiting = self._parts.of((topic.id, writer))
        wanted = _addresses(batch, parts, len(waiting))
        missing = [address for address in wanted if address not in waiting]
        if missing:
            raise _incomplete(missing)
        if len({*wanted}) < len(wanted):
            raise InvalidRequestError("parts contains a part twice")
        named = [waiting[address] for address in wanted]
        payload = sum(part.payload for part in named)
        if payload > COMMIT_BYTES_MAX:
            raise BatchTooLargeError(
                f"{payload} bytes in one commit; the limit is {COMMIT_BYTES_MAX}; commit fewer parts",
                detail={"bytes": payload, "max": COMMIT_BYTES_MAX},
            )
        return named

    async def _publish(self, topic: Topic, writer: str, batch: int, named: list[StagedPart]) -> AppendResult:
        loaded: Pending[list[Rows | None]] = Pending()

        def read(found: list[Rows | None], error: OSError | None) -> None:
            if error is not None:
                loaded.fail(InternalError(f"a staged part could not be read: {error.strerror}"))
            else:
                loaded.resolve(found)

        self._files.read([part.number for part in named], read)
        found = await loaded
        if topic.gone:
            raise TopicNotFoundError(topic.name)
        damaged = [part for part, part_rows in zip(named, found, strict=True) if part_rows is None]
        if damaged:
            waiting = self._parts.of((topic.id, writer))
            self._remove(self._parts.take([part for part in damaged if waiting.get(part.address) is part]))
            raise _incomplete([part.address for part in damaged])
        self._engine.check_open()
        rows = [part_rows for part_rows in found if part_rows is not None]
        return await self._engine.publisher.publish(
            topic, rows, WriterTag(writer, batch), self, self._synced(topic, writer, batch)
        )

    def _synced(self, topic: Topic, writer: str, batch: int) -> Callable[[], None]:
        """Return the callback that removes the files of a batch after its Commit frame is synced."""
        return lambda: self._remove(self._published.pop((topic.id, writer, batch), []))

    # Calls from the engine

    def apply(self, _: int, topic: Topic, ts: int, body: bytes) -> None:
        """Apply a commit: set the writer's last batch, and remove its parts up to it from the index."""
        done = msgpack.decode(body, type=CommitBody)
        writers = self._writers.setdefault(topic.id, {})
        last = writers.get(done.writer)
        if last is None or last.batch < done.batch:
            writers[done.writer] = LastBatch(done.batch, done.first, done.last)
        files = self._parts.take(self._parts.up_to((topic.id, done.writer), done.batch))
        if files:
            self._published[topic.id, done.writer, done.batch] = files

    def capture(self) -> bytes:
        """Return the checkpoint section: topic id to the last batch of each writer."""
        return msgpack.encode({topic_id: writers for topic_id, writers in self._writers.items() if writers})

    def restore(self, section: bytes) -> None:
        """Restore the last batches from a checkpoint section."""
        self._writers = msgpack.decode(section, type=dict[int, dict[str, LastBatch]])

    def forget(self, topic: Topic) -> None:
        """Drop the writers and parts of a deleted topic."""
        self._writers.pop(topic.id, None)
        self._remove(self._parts.take(self._parts.of_topic(topic.id)))


def check_writer(writer: str) -> None:
    """Raise InvalidRequestError unless the name of a writer has a valid length."""
    size = len(writer.encode("utf-8", "surrogatepass"))
    if size == 0:
        raise InvalidRequestError("writer is empty")
    if size > WRITER_BYTES_MAX:
        raise InvalidRequestError(f"writer is {size} bytes; the limit is {WRITER_BYTES_MAX}")


def _addresses(batch: int, parts: Sequence[PartRef], waiting: int) -> list[PartAddress]:
    """Return the address of every chunk of every part, in order.

    The list ends once it must contain more missing chunks than an answer names.
    """
    found: list[PartAddress] = []
    for part, attempt, chunks in parts:
        found += [PartAddress(batch, part, attempt, chunk) for chunk in range(min(chunks, waiting + _MISSING_MAX))]
        if len(found) > waiting + _MISSING_MAX:
            break
    return found


def _incomplete(missing: Sequence[PartAddress]) -> StageIncompleteError:
    named = [{"part": part, "attempt": attempt, "chunk": chunk} for _, part, attempt, chunk in missing[:_MISSING_MAX]]
    return StageIncompleteError(f"{len(missing)} parts of this commit are missing", detail={"missing": named})


_MISSING_MAX = 1000
"""How many missing parts an answer names at most."""
