"""Segment files written and sealed by a process of its own: blocks over, tag indexes back.

Two threads there, as in a server without it: one writes blocks and never waits for the device, the other seals. So
blocks of one segment are written in the order in which they were sent, and seals are done in theirs; a seal is sent
when its blocks are known to be written. `after` comes behind all that was sent before it.

Invariants
- It does the good way alone. What it failed at is the server's to do from then on, for who has seen a failed sync must
  know of it: the kernel tells of one once.
- A server that left without a word has no use for what is queued: its log has it all. It ends behind what it is doing.
- When it is gone, everything under way has failed.
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
from driftq.system.writer_process import Answers, Desk, Scribe, WriterMessage

Sealed = TagIndex | BlockDamagedError
Wrote = Callable[[None, Exception | None], None]


class ScribeError(OSError):
    """What an order failed with, and which of its segments nobody can say of what the device has."""

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
    """Of a write the sizes of the frames, of a seal the numbers of the blocks to be found by tag."""
    place: int
    """Of a write where its first frame goes, of a seal how many bytes of the body are its index."""


class _Order(Struct, array_like=True):
    kind: int
    number: int
    segments: list[_Segment]
    hurry: bool = False


class _Answer(Struct, array_like=True):
    number: int
    failed: int = 0
    """The error of the system, if there was one."""
    why: str = ""
    doubtful: list[int] = []
    """With an error: of which segments a sync has failed, by their places in the order."""
    sealed: list[int | str] = []
    """Of each segment how many bytes of the body are its tag index, or what is damaged."""


_Waiting = tuple[Callable[[list[Sealed], ScribeError | None], None], int]
"""Who hears what became of an order, and how many segments it is about."""

_encode = Encoder().encode
_order = Decoder(_Order).decode
_answer = Decoder(_Answer).decode


class SegmentScribe:
    """The loop's side. Everybody hears what became of his order, on the loop."""

    def __init__(self, scribe: Scribe, lock: Lock, data_dir: str) -> None:
        self.gone = False
        self.on_gone: Callable[[], None] | None = None
        """Is called on the loop when the process has ended before `close`, and its orders have failed."""
        self._closing = False
        self.pid = scribe.pid
        self._scribe = scribe
        self._orders = 0
        self._waiting: dict[int, _Waiting] = {}
        scribe.begin(f"{__name__}:{keep_segments.__name__}", data_dir.encode(), lock, self._hear, self._lost)

    @property
    def jobs(self) -> int:
        """Orders that have not been answered yet."""
        return len(self._waiting)

    @property
    def oldest(self) -> int | None:
        """The number of the oldest order that has not been answered yet."""
        return next(iter(self._waiting), None)

    def kill(self) -> None:
        """End a process that does not answer. Its orders fail when it is gone."""
        self._scribe.kill()

    def write(self, topic_id: int, first_seq: int, frames: Sequence[tuple[int, bytes]], done: Wrote) -> None:
        """`SegmentStore.write`."""
        contents = [frame for _, frame in frames]
        segment = _Segment(topic_id, first_seq, list(map(len, contents)), frames[0][0])
        self._send(_Kind.WRITE, [segment], contents, lambda _, error: done(None, error))

    def seal(
        self,
        segments: Sequence[tuple[int, int, BlockIndex, list[int]]],
        done: Callable[[list[Sealed], ScribeError | None], None],
        *,
        hurry: bool,
    ) -> None:
        """`storage.segments.seal.seal`, of segments given with their index and the numbers of the blocks to be
        found."""
        indexes = [encode_index(index) for _, _, index, _ in segments]
        orders = [
            _Segment(topic_id, first_seq, numbers, len(content))
            for (topic_id, first_seq, _, numbers), content in zip(segments, indexes, strict=True)
        ]
        self._send(_Kind.SEAL, orders, indexes, done, hurry=hurry)

    def after(self, done: Callable[[], None]) -> None:
        """Call back when everything that was ordered before has been done."""
        self._send(_Kind.AFTER, [], [], lambda _, __: done())

    def close(self) -> None:
        """Have it finish what it was told, and end."""
        self._closing = True
        if not self.gone:
            self._scribe.send(_encode(_Order(_Kind.FINISH, 0, [])), [])
        self._scribe.close()
        self._lost()

    def _send(
        self,
        kind: _Kind,
        segments: list[_Segment],
        buffers: Sequence[bytes],
        done: Callable[[list[Sealed], ScribeError | None], None],
        *,
        hurry: bool = False,
    ) -> None:
        assert not self.gone, "whoever orders has looked whether anybody is there"
        self._orders += 1
        self._waiting[self._orders] = done, len(segments)
        self._scribe.send(_encode(_Order(kind, self._orders, segments, hurry)), buffers)

    def _hear(self, message: WriterMessage) -> None:
        answer = _answer(message.head)
        done, _ = self._waiting.pop(answer.number)
        if answer.failed:
            done([], ScribeError(answer.failed, answer.why, answer.doubtful))
            return
        sealed: list[Sealed] = []
        place = 0
        for found in answer.sealed:
            if isinstance(found, str):
                sealed.append(BlockDamagedError(found))
                continue
            tags = TagIndex.decode(bytes(message.body[place : place + found]))
            place += found
            assert tags is not None, "what came over the line is what was sent"
            sealed.append(tags)
        done(sealed, None)

    def _lost(self) -> None:
        self.gone = True
        waiting, self._waiting = self._waiting, {}
        for done, segments in waiting.values():
            done([], ScribeError(EIO, "the process that writes segments is gone", range(segments)))
        if self.on_gone is not None and not self._closing:
            self.on_gone()


class SegmentWork:
    """The scribe's side: orders in, answers out."""

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
        """Have it done in its turn; or do all that is left, where the server says that it goes."""
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
        except Exception as bug:  # noqa: BLE001 - the thread goes on, and the loop hears of it
            answer.failed, answer.why = EIO, repr(bug)
        if answer.failed:
            answer.doubtful = [
                place
                for place, one in enumerate(order.segments)
                if self._store.is_doubtful(one.topic_id, one.first_seq)
            ]
        self._answers.send(_encode(answer), body)

    def _write(self, segment: _Segment, body: bytes) -> tuple[list[int | str], bytes]:
        # The frames stand one behind the other in the file as they do here: one write is as good as one for each.
        self._store.write(segment.topic_id, segment.first_seq, [(segment.place, body)])
        return [], b""

    def _seal(self, order: _Order, body: bytes) -> tuple[list[int | str], bytes]:
        segments, place = [], 0
        for one in order.segments:
            index = decode_index(body[place : place + one.place])
            place += one.place
            assert index is not None, "what came over the line is what was sent"
            segments.append(UnsealedSegment(one.topic_id, one.first_seq, index, partial(self._blocks, one, index)))
        found = seal(self._store, segments, hurry=order.hurry)
        self._tidy()
        tags = [one.encode() for one in found if isinstance(one, TagIndex)]
        sizes = iter(map(len, tags))
        return [str(one) if isinstance(one, BlockDamagedError) else next(sizes) for one in found], b"".join(tags)

    def _blocks(self, segment: _Segment, index: BlockIndex) -> list[Block]:
        read = self._store.read_block
        return [read(segment.topic_id, segment.first_seq, index, number) for number in segment.parts]


def keep_segments(desk: Desk, head: bytes) -> None:
    """The life of the process, until its server has left."""
    # What is made for a seal is not needed by the next one, and the memory is the server's to use.
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
    work = SegmentWork(desk, OsDisk(), head, ThreadWorker, give_freed_memory_back)
    while not work.finished and (messages := desk.receive(None)) is not None:
        for message in messages:
            work.take(message)


def _run(jobs: list[Callable[[], Any]]) -> None:
    for job in jobs:
        job()
