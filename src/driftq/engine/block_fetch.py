"""Reads blocks from segment files for readers, and turns damaged blocks into holes.

Files are read on two threads, one for each tier, so that reads of hot segments never wait for a cold tier that hangs.
The event loop continues meanwhile, and the reader asks for its page again when its `Fetch` has settled.
"""

from collections.abc import Callable

from driftq.engine.read.topic_page import Damaged, Missing
from driftq.engine.state.block_cache import Blocks, unavailable
from driftq.engine.state.control_frames import HoleBody, encode_body
from driftq.engine.state.record_log import LogPart
from driftq.engine.state.topic import Topic
from driftq.engine.write.change_log import ChangeLog
from driftq.engine.write.state_changes import apply_hole
from driftq.errors import DriftQError
from driftq.model.tombstone import Reason
from driftq.storage.blocks.block import Block, RowSource
from driftq.storage.blocks.frame import Kind
from driftq.storage.segments.hot_store import BlockDamagedError
from driftq.system.runtime import Pending, Runtime, SerialWorker


class Fetch(Pending[None], eq=False, kw_only=True):
    """A read that has to wait. Keep it until it has settled, because it keeps blocks of the page alive."""

    held: list[RowSource]


class Fetching:
    """Owns the threads that read blocks, and stores or reports what they find."""

    def __init__(
        self, runtime: Runtime, blocks: Blocks, change_log: ChangeLog, changed: Callable[[Topic], None]
    ) -> None:
        self._runtime = runtime
        self._blocks = blocks
        self._change_log = change_log
        self._changed = changed
        self._readers: SerialWorker[Callable[[], None]] = runtime.worker("driftq-reads", _run_all)
        self._cold_readers: SerialWorker[Callable[[], None]] | None = None
        """The thread for cold reads; started on first use."""

    def close(self) -> None:
        """Stop the threads that read blocks."""
        self._readers.close()
        if self._cold_readers is not None:
            self._cold_readers.close()

    def wait_for(self, topic: Topic, found: Missing | Damaged) -> Fetch:
        """Return a Pending that settles when the missing block is loaded or the damaged one is logged as a hole."""
        if isinstance(found, Missing):
            return self._fetch(topic, found)
        answer = Fetch(held=[])
        self._isolate(topic, found.part, answer)
        return answer

    def _fetch(self, topic: Topic, missing: Missing) -> Fetch:
        """Read a block on a thread. After it, the reader finds the block, or a hole if the block was damaged."""
        answer = Fetch(held=missing.others)
        part = missing.part
        first_seq, index, cold = part.segment.first_seq, part.segment.index, part.segment.cold

        def settle(block: Block | None, error: Exception | None) -> None:
            if part.segment.index is not index or part.segment not in topic.segments:
                # The segment has been moved to the cold tier or dropped meanwhile, so this block is out of date.
                answer.resolve(None)
            elif block is not None:
                self._blocks.keep(part.segment, part.number, block)
                answer.held.append(block)
                answer.resolve(None)
            elif isinstance(error, BlockDamagedError):
                self._isolate(topic, part, answer)
            else:
                assert error is not None
                answer.fail(unavailable(error, cold=cold))

        def read() -> None:
            try:
                block = self._blocks.read(topic.id, first_seq, index, part.number, cold=cold)
            except Exception as failure:  # noqa: BLE001 - the thread continues, and the reader gets the error
                error = failure
                self._runtime.from_thread(lambda: settle(None, error))
            else:
                self._runtime.from_thread(lambda: settle(block, None))

        self._worker_for(cold=cold).put(read)
        return answer

    def _worker_for(self, *, cold: bool) -> SerialWorker[Callable[[], None]]:
        if not cold:
            return self._readers
        if self._cold_readers is None:
            self._cold_readers = self._runtime.worker("driftq-cold-reads", _run_all)
        return self._cold_readers

    def _isolate(self, topic: Topic, part: LogPart, answer: Fetch) -> None:
        """Log a damaged block as a hole before any reader sees the hole."""
        body = HoleBody(part.first_seq, part.end_seq - 1, Reason.CORRUPTION)

        def settle(done: Pending[None]) -> None:
            if done.error is not None:
                answer.fail(done.error)
            else:
                answer.resolve(None)

        def apply(op: int, ts: int) -> None:
            apply_hole(topic, body, op, ts)
            self._changed(topic)

        try:
            self._change_log.control(topic, Kind.HOLE, encode_body(body), apply).then(settle)
        except DriftQError as error:
            answer.fail(error)


def _run_all(jobs: list[Callable[[], None]]) -> None:
    for job in jobs:
        job()
