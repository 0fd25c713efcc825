"""A process that writes and seals segment files: it receives blocks and returns tag indexes.

It has two threads, like a server without such a process: one writes blocks and never waits for the device, the other
seals. So the blocks of a segment are written in the order in which they were sent, and seals are made in their own
order. A seal is sent only when its blocks are known to be written. `after` reports when everything sent before it is
done.

Invariants
- The process never handles a failure. From then on the server does that work itself, because a failed sync must be
  remembered: the kernel reports it only once.
- If the server ends without a FINISH order, the process ends at once, even within an order: the log has all records of
  its orders.
- When the process has ended, all unanswered orders have failed.
"""

import os
from collections.abc import Callable, Sequence
from enum import IntEnum
from errno import EIO
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from driftq.storage.blocks.block import Block
from driftq.storage.layout import Layout
from driftq.storage.segments.block_index import BlockIndex, decode_index, encode_index
from driftq.storage.segments.hot_store import BlockDamagedError, SegmentStore
from driftq.storage.segments.seal import UnsealedSegment, seal
from driftq.storage.segments.tag_index import TagIndex
from driftq.system.disk import Disk, OsDisk
from driftq.system.lock import Lock
from driftq.system.machine import give_freed_memory_back
from driftq.system.runtime import Handle, SerialWorker, ThreadWorker
from driftq.system.writer_process import Answers, ServerLine, WriterMessage, WriterProcess

Sealed = TagIndex | BlockDamagedError
Wrote = Callable[[None, Exception | None], None]


class WriterProcessError(OSError):
    """The error of an order. `doubtful` has the indexes of its segments whose state on the device is not known."""

    def __init__(self, number: int, why: str, doubtful: Sequence[int]) -> None:
        super().__init__(number, why)
        self.doubtful = doubtful


class _Kind(IntEnum):
    WRITE = 0
    SEAL = 1
    AFTER = 2
    FINISH = 3


class _Segment(Struct, array_like=True):
    topic_id: int
    first_seq: int
    parts: list[int]
    """For a write: the sizes of the frames. For a seal: the numbers of the blocks whose tags go into the index."""
    place: int
    """For a write: the offset of its first frame. For a seal: the size of its index in the body, in bytes."""


class _Order(Struct, array_like=True):
    kind: int
    number: int
    segments: list[_Segment]
    hurry: bool = False


class _Answer(Struct, array_like=True):
    number: int
    failed: int = 0
    """The errno, or 0 for success."""
    why: str = ""
    doubtful: list[int] = []
    """After an error: the indexes of the order's segments whose sync has failed."""
    sealed: list[int | str] = []
    """For each segment: the size of its tag index in the body, or a description of the damage."""


_Waiting = tuple[Callable[[list[Sealed], WriterProcessError | None], None], int]
"""The callback of an order, and the number of its segments."""

_encode = Encoder().encode
_order = Decoder(_Order).decode
_answer = Decoder(_Answer).decode


class SegmentProcess:
    """The server's side of the segment process. All callbacks run on the loop."""

    def __init__(self, writer_process: WriterProcess, lock: Lock, data_dir: str) -> None:
        self.gone = False
        self.on_gone: Callable[[], None] | None = None
        """Called on the loop if the process ends before `close`, after its orders have failed."""
        self._closing = False
        self.pid = writer_process.pid
        self._writer_process = writer_process
        self._orders = 0
        self._waiting: dict[int, _Waiting] = {}
        writer_process.begin(f"{__name__}:{keep_segments.__name__}", data_dir.encode(), lock, self._hear, self._lost)

    @property
    def jobs(self) -> int:
        """Return the number of orders without an answer."""
        return len(self._waiting)

    @property
    def oldest(self) -> int | None:
        """Return the number of the oldest order without an answer."""
        return next(iter(self._waiting), None)

    def kill(self) -> None:
        """Kill a process that does not answer. Its orders fail when it has ended."""
        self._writer_process.kill()

    def write(self, topic_id: int, first_seq: int, frames: Sequence[tuple[int, bytes]], done: Wrote) -> None:
        """Order `SegmentStore.write`; `done` gets the error, or None."""
        contents = [frame for _, frame in frames]
        segment = _Segment(topic_id, first_seq, list(map(len, contents)), frames[0][0])
        self._send(_Kind.WRITE, [segment], contents, lambda _, error: done(None, error))

    def seal(
        self,
        segments: Sequence[tuple[int, int, BlockIndex, list[int]]],
        done: Callable[[list[Sealed], WriterProcessError | None], None],
        *,
        hurry: bool,
    ) -> None:
        """Order `storage.segments.seal.seal`.

        A segment is given as topic id, first seq, index, and the numbers of the blocks whose tags go into the index.
        """
        indexes = [encode_index(index) for _, _, index, _ in segments]
        orders = [
            _Segment(topic_id, first_seq, numbers, len(content))
            for (topic_id, first_seq, _, numbers), content in zip(segments, indexes, strict=True)
        ]
        self._send(_Kind.SEAL, orders, indexes, done, hurry=hurry)

    def after(self, done: Callable[[], None]) -> None:
        """Call `done` when everything that was ordered before is finished."""
        self._send(_Kind.AFTER, [], [], lambda _, __: done())

    def close(self) -> None:
        """Make the process finish its orders and end."""
        self._closing = True
        if not self.gone:
            self._writer_process.send(_encode(_Order(_Kind.FINISH, 0, [])), [])
        self._writer_process.close()
        self._lost()

    def _send(
        self,
        kind: _Kind,
        segments: list[_Segment],
        buffers: Sequence[bytes],
        done: Callable[[list[Sealed], WriterProcessError | None], None],
        *,
        hurry: bool = False,
    ) -> None:
        assert not self.gone, "callers check `gone` before they order"
        self._orders += 1
        self._waiting[self._orders] = done, len(segments)
        self._writer_process.send(_encode(_Order(kind, self._orders, segments, hurry)), buffers)

    def _hear(self, message: WriterMessage) -> None:
        answer = _answer(message.head)
        done, _ = self._waiting.pop(answer.number)
        if answer.failed:
            done([], WriterProcessError(answer.failed, answer.why, answer.doubtful))
            return
        sealed: list[Sealed] = []
        place = 0
        for found in answer.sealed:
            if isinstance(found, str):
                sealed.append(BlockDamagedError(found))
                continue
            tags = TagIndex.decode(bytes(message.body[place : place + found]))
            place += found
            assert tags is not None, "messages arrive unchanged"
            sealed.append(tags)
        done(sealed, None)

    def _lost(self) -> None:
        self.gone = True
        waiting, self._waiting = self._waiting, {}
        for done, segments in waiting.values():
            done([], WriterProcessError(EIO, "the process that writes segments has ended", range(segments)))
        if self.on_gone is not None and not self._closing:
            self.on_gone()


class SegmentWork:
    """The work of the segment process: takes orders, sends answers."""

    def __init__(
        self,
        answers: Answers,
        disk: Disk,
        head: bytes,
        make_worker: Callable[[str, Handle[Callable[[], None]]], SerialWorker[Callable[[], None]]],
        tidy: Callable[[], object] = lambda: None,
    ) -> None:
        self._answers = answers
        self._tidy = tidy
        self._store = SegmentStore(Layout(disk, head.decode()))
        self._writes = make_worker("driftq-blocks", _run)
        self._seals = make_worker("driftq-seals", _run)
        self.finished = False

    def take(self, message: WriterMessage) -> None:
        """Queue an order on its thread. FINISH completes all queued orders instead."""
        order, body = _order(message.head), bytes(message.body)
        if order.kind == _Kind.FINISH:
            self._writes.close()
            self._seals.close()
            self.finished = True
        elif order.kind == _Kind.WRITE:
            self._writes.put(partial(self._do, order, partial(self._write, order.segments[0], body)))
        elif order.kind == _Kind.SEAL:
            self._seals.put(partial(self._do, order, partial(self._seal, order, body)))
        else:
            answer = partial(self._do, order, lambda: ([], b""))
            self._writes.put(lambda: self._seals.put(answer))

    def _do(self, order: _Order, work: Callable[[], tuple[list[int | str], bytes]]) -> None:
        answer, body = _Answer(order.number), b""
        try:
            answer.sealed, body = work()
        except OSError as error:
            answer.failed, answer.why = error.errno or EIO, error.strerror or str(error)
        except Exception as bug:  # noqa: BLE001 - the thread must continue; the answer reports the error
            answer.failed, answer.why = EIO, repr(bug)
        if answer.failed:
            answer.doubtful = [
                place
                for place, one in enumerate(order.segments)
                if self._store.is_doubtful(one.topic_id, one.first_seq)
            ]
        self._answers.send(_encode(answer), body)

    def _write(self, segment: _Segment, body: bytes) -> tuple[list[int | str], bytes]:
        # The frames are back to back in the file as they are here, so one write is enough for all.
        self._store.write(segment.topic_id, segment.first_seq, [(segment.place, body)])
        return [], b""

    def _seal(self, order: _Order, body: bytes) -> tuple[list[int | str], bytes]:
        segments, place = [], 0
        for one in order.segments:
            index = decode_index(body[place : place + one.place])
            place += one.place
            assert index is not None, "messages arrive unchanged"
            segments.append(UnsealedSegment(one.topic_id, one.first_seq, index, partial(self._blocks, one, index)))
        found = seal(self._store, segments, hurry=order.hurry)
        self._tidy()
        tags = [one.encode() for one in found if isinstance(one, TagIndex)]
        sizes = iter(map(len, tags))
        return [str(one) if isinstance(one, BlockDamagedError) else next(sizes) for one in found], b"".join(tags)

    def _blocks(self, segment: _Segment, index: BlockIndex) -> list[Block]:
        read = self._store.read_block
        return [read(segment.topic_id, segment.first_seq, index, number) for number in segment.parts]


def keep_segments(server_line: ServerLine, head: bytes) -> None:
    """Run the segment process until the server has ended."""
    # The memory of one seal is not reused by the next, so it is returned to the system.
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
    work = SegmentWork(server_line, OsDisk(), head, ThreadWorker, give_freed_memory_back)
    while not work.finished and (messages := server_line.receive(None)) is not None:
        for message in messages:
            work.take(message)


def _run(jobs: list[Callable[[], Any]]) -> None:
    for job in jobs:
        job()
