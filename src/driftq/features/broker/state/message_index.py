"""The index of a topic's messages per partition: their offsets in order, their number and their size.

Offsets belong to the topic: message `n` of the log is offset `n - 1`. A topic with one partition stores nothing per
message; with several, it stores the partition of each message, packed (`PartitionColumn`). A start reads the partitions
from the tags of records, which are `p<k>`: for a sealed segment from its tag index, without reading a payload
(`TagIndexes.numbered`); for other segments, and if that index is missing or damaged, from the blocks.

Retention has removed all messages below `start`. While a trim is being logged, the messages that it will remove are
not delivered (`leave`); if the trim fails, they are delivered again.

`incoming` counts messages that were sent to the log and are not committed. Only backpressure uses it.
"""

from collections.abc import Callable, Sequence

from msgspec import json

from driftq.engine.read.tag_lookup import TagIndexes
from driftq.engine.state.record_log import LogPart
from driftq.engine.state.topic import Topic
from driftq.features.broker.state.broker_frames import Trimmed
from driftq.features.broker.state.partition_column import NARROW_MAX, PartitionColumn
from driftq.model.message import Message
from driftq.storage.segments.tag_codes import Column

_decode = json.Decoder(list[Message]).decode


def tag_of(partition: int) -> str:
    """Return the tag of a partition's records."""
    return f"p{partition}"


class Partition:
    """The totals of one partition."""

    __slots__ = ("count", "incoming", "incoming_size", "retired", "size")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        """The bytes of keys and values."""
        self.incoming = 0
        self.incoming_size = 0
        self.retired: dict[int, int] = {}
        """Messages that are done for every group, with their sizes."""


class Index:
    """The messages of one topic, by partition."""

    def __init__(self, partitions: int) -> None:
        self.parts = [Partition() for _ in range(partitions)]
        self.head = 0
        """The highest offset plus one."""
        self.start = 0
        """The lowest offset that may exist."""
        self._first = 0
        """The lowest offset that may be delivered."""
        self._partition_column = PartitionColumn(partitions) if partitions > 1 else None

    def add(self, partition: int, offset: int, size: int) -> None:
        """Add a message at the end."""
        part = self.parts[partition]
        part.count += 1
        part.size += size
        if self._partition_column is not None:
            self._partition_column.add(partition, offset)
        self.head = max(self.head, offset + 1)

    def place(self, offset: int, partitions: Sequence[int]) -> None:
        """Record the partitions of consecutive messages that are already in the totals."""
        if self._partition_column is not None:
            self._partition_column.extend(offset, partitions)

    def at_or_after(self, partition: int, offset: int) -> int | None:
        """Return the first message of a partition at or above an offset, or None."""
        offset = max(offset, self._first)
        if self._partition_column is None:
            return offset if offset < self.head else None
        return self._partition_column.at_or_after(partition, offset)

    def from_on(self, partition: int, offset: int, end: int, most: int) -> Sequence[int]:
        """Return up to `most` messages of a partition, starting with the message `offset` and below `end`."""
        if self._partition_column is None:
            return range(offset, max(offset + 1, min(offset + most, end, self.head)))
        found = [offset]
        while (
            len(found) < most and (further := self.at_or_after(partition, found[-1] + 1)) is not None and further < end
        ):
            found.append(further)
        return found

    def last(self, partition: int) -> int:
        """Return the highest message of a partition, or -1."""
        return self.head - 1 if self._partition_column is None else self._partition_column.last(partition)

    def partition_at(self, offset: int) -> int | None:
        """Return the partition of a message, or None."""
        if not self.start <= offset < self.head:
            return None
        return 0 if self._partition_column is None else self._partition_column.partition_at(offset)

    # Retention

    def leave(self, start: int) -> None:
        """Stop delivering messages below an offset, because a trim removes them. `leave(index.start)` undoes it."""
        self._first = start

    def trim(self, start: int, taken: list[Trimmed]) -> None:
        """Remove all messages below an offset, and subtract them from the totals."""
        self.cut(start)
        for gone in taken:
            part = self.parts[gone.partition]
            part.count = max(0, part.count - gone.count)
            part.size = max(0, part.size - gone.size)

    def cut(self, start: int) -> None:
        """Raise the lowest offset to `start`, never lower it, and forget the retired messages below it.

        Counts and sizes stay the same.
        """
        self.start = max(self.start, start)
        self._first = self.start
        self.head = max(self.head, self.start)
        if self._partition_column is not None:
            self._partition_column.trim(self.start)
        for part in self.parts:
            for offset in [offset for offset in part.retired if offset < self.start]:
                del part.retired[offset]


class IndexReader:
    """Fills the index of a topic that recovery has restored.

    Up to offset `known` the totals come from a checkpoint. Later messages are read, and those with an envelope are
    passed to `heard`; the others are only counted.
    """

    def __init__(
        self, index: Index, topic: Topic, tags: TagIndexes, known: int, heard: Callable[[int, int, int, Message], None]
    ) -> None:
        self._index = index
        self._topic = topic
        self._tags = tags
        self._known = max(known, index.start)
        self._heard = heard
        self._single = len(index.parts) == 1
        self._numbers = {tag_of(number).encode(): number for number in range(len(index.parts))}
        self._columns: tuple[int, list[Column] | None] = (0, None)
        """The uid of a segment, and the partitions in each of its blocks."""

    def read(self, totals: list[tuple[int, int]]) -> None:
        """Fill the index. Raise OSError."""
        index, topic = self._index, self._topic
        for partition, (count, size) in zip(index.parts, totals, strict=False):
            partition.count, partition.size = count, size
        for part in list(topic.parts(self._known + 1 if self._single else index.start + 1)):
            column = self._column(part)
            if column is None:
                self._read_block(part)
            elif part.segment.live_in(part.number)[0]:
                begin = max(index.start - part.first_seq + 1, 0)
                index.place(part.first_seq + begin - 1, column[begin:])
        index.head = max(index.head, topic.head)

    def _column(self, part: LogPart) -> "Column | None":
        """Return the partition of each row of a part; None if its block has to be read."""
        segment = part.segment
        if self._single or not segment.sealed or segment.resident or part.end_seq - 1 > self._known:
            return None
        if self._columns[0] != segment.uid:
            wide = len(self._index.parts) > NARROW_MAX
            self._columns = (segment.uid, self._tags.numbered(self._topic, segment, self._numbers, wide=wide))
        columns = self._columns[1]
        return None if columns is None else columns[part.number]

    def _read_block(self, part: LogPart) -> None:
        index, known = self._index, self._known
        source = self._topic.source(part)
        if source is None:
            return
        begin = min(max(index.start - part.first_seq + 1, 0), part.count)
        first = min(max(known - part.first_seq + 1, 0), part.count)
        numbers: list[int] = []
        if not self._single:
            tags = source.tags(begin, part.count) or [None] * (part.count - begin)
            numbers = [0 if tag is None else self._numbers[tag] for tag in tags]
        index.place(part.first_seq + begin - 1, numbers)
        if first < part.count:
            # Decode a whole part in one call: at a start there may be a million messages.
            messages = _decode(b"[%b]" % b",".join(source.data(first, part.count)))
            offset = part.first_seq + first - 1
            numbers = [0] * len(messages) if self._single else numbers[first - begin :]
            _count(index, numbers, messages)
            index.head = max(index.head, offset + len(messages))
            times = source.times(first, part.count)
            for row, message in enumerate(messages):
                if message.envelope is not None:
                    self._heard(numbers[row], offset + row, times if isinstance(times, int) else times[row], message)


def _count(index: Index, numbers: list[int], messages: list[Message]) -> None:
    """Add messages to the totals, each with its partition."""
    if len(index.parts) > 1:
        for number, message in zip(numbers, messages, strict=True):
            part = index.parts[number]
            part.count += 1
            part.size += message.size
        return
    part = index.parts[0]
    text = "".join([message.key for message in messages]) + "".join([message.value for message in messages])
    part.count += len(messages)
    part.size += len(text if text.isascii() else text.encode())
