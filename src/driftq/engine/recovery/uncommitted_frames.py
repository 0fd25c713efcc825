"""Append frames that replay holds back until it meets the Commit frame of their publication (`engine/write/publisher`).

All frames of a publication stand in one file, one behind the other. So what is held when the file ends, or when the
next control frame of the topic is another one, was never committed, and is dropped: nobody was told of it.

A damaged Append frame of a publication is held by its header, which says whose seqs are gone; a Commit frame that is
damaged but for its header still proves that the frames before it were committed, and they say by whom.
"""

from typing import NamedTuple

from driftq.engine.state.control_frames import CommitBody, WriterTag, decode_body
from driftq.storage.blocks.block import Block
from driftq.storage.blocks.frame import Frame


class HeldFrame(NamedTuple):
    """One Append frame; without a buffer where it is damaged."""

    buffer: bytes | None
    frame: Frame

    @property
    def last(self) -> int:
        """Its last seq."""
        return self.frame.seq + self.frame.count - 1


class UncommittedFrames:
    """The frames that wait, by topic."""

    def __init__(self) -> None:
        self._topics: dict[int, list[HeldFrame]] = {}

    def add(self, buffer: bytes | None, frame: Frame) -> None:
        """Hold a frame of a publication back."""
        self._topics.setdefault(frame.topic_id, []).append(HeldFrame(buffer, frame))

    def take(self, topic_id: int) -> list[HeldFrame]:
        """The frames of a topic: they are held no more."""
        return self._topics.pop(topic_id, []) if self._topics else []

    def drop(self) -> None:
        """The file has ended."""
        self._topics.clear()


def commit_of(frames: list[HeldFrame]) -> CommitBody | None:
    """What the Commit frame of these must have said, if any of them can be read."""
    for buffer, frame in frames:
        block = None if buffer is None else Block.read(buffer, frame)
        if isinstance(block, Block) and block.writer is not None:
            tag = decode_body(WriterTag, block.writer)
            return CommitBody(tag.writer, tag.batch, frames[0].frame.seq, frames[-1].last)
    return None
