"""What a read waits for: a block that has to come from a file, or a damaged one that has to become a hole first.

Files are read on one thread; the loop goes on, and whoever reads asks again when his `Fetch` has settled.
"""

from collections.abc import Callable

from driftq.engine.apply import apply_hole
from driftq.engine.blocks import Blocks, unreadable
from driftq.engine.diff import Damaged, Missing
from driftq.engine.frames import HoleBody, encode_body
from driftq.engine.journal import Journal
from driftq.engine.log import Part
from driftq.engine.topic import Topic
from driftq.errors import DriftQError
from driftq.model.tombstone import Reason
from driftq.seam.runtime import Pending, Runtime, Worker
from driftq.storage.block import Block, RowSource
from driftq.storage.frame import Kind
from driftq.storage.segment_store import is_lost


class Fetch(Pending[None], eq=False, kw_only=True):
    """A read that has to wait. Ask again when it has settled, and hold it until then: it holds blocks of the page."""

    held: list[RowSource]


class Fetching:
    """The thread that reads, and what becomes of what it finds."""

    def __init__(self, runtime: Runtime, blocks: Blocks, journal: Journal, changed: Callable[[Topic], None]) -> None:
        self._runtime = runtime
        self._blocks = blocks
        self._journal = journal
        self._changed = changed
        self._readers: Worker[Callable[[], None]] = runtime.worker("driftq-reads", _run_all)

    def close(self) -> None:
        """End the thread."""
        self._readers.close()

    def wait_for(self, topic: Topic, found: Missing | Damaged) -> Fetch:
        """What stands between a reader and his page, as something to wait for."""
        if isinstance(found, Missing):
            return self._fetch(topic, found)
        answer = Fetch(held=[])
        self._isolate(topic, found.part, answer)
        return answer

    def _fetch(self, topic: Topic, missing: Missing) -> Fetch:
        """Read a block on a thread. What it finds, or that it is lost, the reader finds too when he asks again."""
        answer = Fetch(held=missing.others)
        part = missing.part
        first_seq, index, cold = part.segment.first_seq, part.segment.index, part.segment.cold

        def settle(block: Block | None, error: Exception | None) -> None:
            if part.segment.index is not index or part.segment not in topic.segments:
                # It has been moved to the cold tier or dropped meanwhile: what was read has another place now.
                answer.resolve(None)
            elif block is not None:
                self._blocks.keep(part.segment, part.number, block)
                answer.held.append(block)
                answer.resolve(None)
            elif error is not None and not is_lost(error):
                answer.fail(unreadable(error))
            else:
                self._isolate(topic, part, answer)

        def read() -> None:
            try:
                block = self._blocks.read(topic.id, first_seq, index, part.number, cold=cold)
            except Exception as failure:  # noqa: BLE001 - the thread goes on, and whoever waits hears of it
                error = failure
                self._runtime.from_thread(lambda: settle(None, error))
            else:
                self._runtime.from_thread(lambda: settle(block, None))

        self._readers.put(read)
        return answer

    def _isolate(self, topic: Topic, part: Part, answer: Fetch) -> None:
        """A damaged block becomes a hole, logged before anybody is told."""
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
            self._journal.control(topic, Kind.HOLE, encode_body(body), apply).then(settle)
        except DriftQError as error:
            answer.fail(error)


def _run_all(jobs: list[Callable[[], None]]) -> None:
    for job in jobs:
        job()
