"""Which messages a topic has, per partition: their offsets in order, how many and how large they are.

Offsets are the topic's: message `n` of the log is offset `n - 1`. A topic of one partition stores nothing per message;
one of several keeps the partition of each message, packed (`Spread`). A start finds it again in the tags of records,
which hold it as `p<k>`: for a sealed segment in its index of tags, without reading a payload (`TagIndexes.numbered`);
for the rest, and where that index is missing or damaged, in the blocks.

Below `start` there is nothing: retention has taken it. While a trim is being logged what it will take is not handed out
any more (`leave`), and if it comes to nothing it is again.

`incoming` is what has been sent to the log and is not committed: it counts for backpressure and for nothing else.
"""

from collections.abc import Callable, Sequence

from msgspec import json

from driftq.engine.read.tag_lookup import TagIndexes
from driftq.engine.state.record_log import LogPart
from driftq.engine.state.topic import Topic
from driftq.features.broker.state.broker_frames import Trimmed
from driftq.features.broker.state.partition_column import NARROW_MAX, Spread
from driftq.model.message import Message
from driftq.storage.segments.tag_codes import Column

_decode = json.Decoder(list[Message]).decode


def tag_of(partition: int) -> str:
    """The tag of a partition's records."""
    return f"p{partition}"


class Partition:
    """One partition's messages."""

    __slots__ = ("count", "incoming", "incoming_size", "retired", "size")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        """Bytes of keys and values."""
        self.incoming = 0
        self.incoming_size = 0
        self.retired: dict[int, int] = {}
        """Messages that are done for every group, and their sizes."""


class Index:
    """All messages of one topic."""

    def __init__(self, partitions: int) -> None:
        self.parts = [Partition() for _ in range(partitions)]
        self.head = 0
        """One more than the highest offset there is."""
        self.start = 0
        """The lowest offset there may be."""
        self._first = 0
        """The lowest one that is handed out."""
        self._spread = Spread(partitions) if partitions > 1 else None

    def add(self, partition: int, offset: int, size: int) -> None:
        """A message, at the end."""
        part = self.parts[partition]
        part.count += 1
        part.size += size
        if self._spread is not None:
            self._spread.add(partition, offset)
        self.head = max(self.head, offset + 1)

    def place(self, offset: int, partitions: Sequence[int]) -> None:
        """Messages that follow one another from an offset on, and are counted already."""
        if self._spread is not None:
            self._spread.extend(offset, partitions)

    def at_or_after(self, partition: int, offset: int) -> int | None:
        """The first message of a partition that is not below an offset."""
        offset = max(offset, self._first)
        if self._spread is None:
            return offset if offset < self.head else None
        return self._spread.at_or_after(partition, offset)

    def from_on(self, partition: int, offset: int, end: int, most: int) -> Sequence[int]:
        """Return so many messages of a partition at most, from one of them on and below `end`."""
        if self._spread is None:
            return range(offset, max(offset + 1, min(offset + most, end, self.head)))
        found = [offset]
        while (
            len(found) < most and (further := self.at_or_after(partition, found[-1] + 1)) is not None and further < end
        ):
            found.append(further)
        return found

    def last(self, partition: int) -> int:
        """The highest message of a partition, or -1."""
        return self.head - 1 if self._spread is None else self._spread.last(partition)

    def partition_at(self, offset: int) -> int | None:
        """The partition of a message."""
        if not self.start <= offset < self.head:
            return None
        return 0 if self._spread is None else self._spread.partition_at(offset)

    # Retention

    def leave(self, start: int) -> None:
        """What is below an offset is about to go; with `start` itself: it stays."""
        self._first = start

    def trim(self, start: int, taken: list[Trimmed]) -> None:
        """What is below an offset is gone, so many messages and bytes per partition."""
        self.cut(start)
        for gone in taken:
            part = self.parts[gone.partition]
            part.count = max(0, part.count - gone.count)
            part.size = max(0, part.size - gone.size)

    def cut(self, start: int) -> None:
        """Below an offset there is nothing."""
        self.start = max(self.start, start)
        self._first = self.start
        self.head = max(self.head, self.start)
        if self._spread is not None:
            self._spread.trim(self.start)
        for part in self.parts:
            for offset in [offset for offset in part.retired if offset < self.start]:
                del part.retired[offset]


class IndexReader:
    """Fills the index of a topic that recovery has brought back.

    Up to offset `known` the totals are those of a checkpoint. Later messages are read, and those with an envelope
    are passed to `heard`; of the others nothing is kept.
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
        """The partitions in each block of one segment, by its uid."""

    def read(self, totals: list[tuple[int, int]]) -> None:
        """Fill the index. Raises OSError."""
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
        """Return the partition of each row of a part; None where its block has to be read."""
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
            # One call for all of a part: at a start there may be a million messages.
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
    """Messages, with the partition of each."""
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
