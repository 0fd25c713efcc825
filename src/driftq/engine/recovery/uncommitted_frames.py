"""Append frames that replay holds back until it reads the Commit frame of their publication (`engine/write/publisher`).

All frames of a publication follow each other in one file. So frames that are still held when the file ends, or when the
next control frame of the topic is another one, were never committed, and are dropped: no caller got an answer for them.

A damaged Append frame of a publication is held by its header, which has the seqs that are gone. A Commit frame of which
only the header is intact still proves that the frames before it were committed; they contain the writer and batch.
"""

from typing import NamedTuple

from driftq.engine.state.control_frames import CommitBody, WriterTag, decode_body
from driftq.storage.blocks.block import Block
from driftq.storage.blocks.frame import Frame


class HeldFrame(NamedTuple):
    """One Append frame; without a buffer if it is damaged."""

    buffer: bytes | None
    frame: Frame

    @property
    def last(self) -> int:
        """Return the last seq of the frame."""
        return self.frame.seq + self.frame.count - 1


class UncommittedFrames:
    """The frames that wait for their Commit frame, by topic."""

    def __init__(self) -> None:
        self._topics: dict[int, list[HeldFrame]] = {}

    def add(self, buffer: bytes | None, frame: Frame) -> None:
        """Hold a frame of a publication back."""
        self._topics.setdefault(frame.topic_id, []).append(HeldFrame(buffer, frame))

    def take(self, topic_id: int) -> list[HeldFrame]:
        """Return the held frames of a topic and stop holding them."""
        return self._topics.pop(topic_id, []) if self._topics else []

    def drop(self) -> None:
        """Drop all held frames, because the file has ended."""
        self._topics.clear()


def commit_of(frames: list[HeldFrame]) -> CommitBody | None:
    """Return the body that the Commit frame of these must have had, or None if none of them can be read."""
    for buffer, frame in frames:
        block = None if buffer is None else Block.read(buffer, frame)
        if isinstance(block, Block) and block.writer is not None:
            tag = decode_body(WriterTag, block.writer)
            return CommitBody(tag.writer, tag.batch, frames[0].frame.seq, frames[-1].last)
    return None
