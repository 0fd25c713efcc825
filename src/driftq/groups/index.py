"""Which messages a topic has, per partition: their offsets in order, how many and how large they are.

Offsets are the topic's: message `n` of the log is offset `n - 1`. A topic of one partition stores nothing per message;
one of several keeps the partition of each message, packed (`Spread`), found again at a start in the blocks' tags, which
hold it as `p<k>`.

Below `start` there is nothing: retention has taken it. While a trim is being logged what it will take is not handed out
any more (`leave`), and if it comes to nothing it is again.

`incoming` is what has been sent to the log and is not committed: it counts for backpressure and for nothing else.
"""

from collections.abc import Callable

from msgspec import json

from driftq.engine.topic import Topic
from driftq.groups.frames import Trimmed
from driftq.groups.spread import Spread
from driftq.model.envelope import Message

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

    def place(self, offset: int, partitions: list[int]) -> None:
        """Messages that follow one another from an offset on, and are counted already."""
        if self._spread is not None:
            self._spread.extend(offset, partitions)

    def at_or_after(self, partition: int, offset: int) -> int | None:
        """The first message of a partition that is not below an offset."""
        offset = max(offset, self._first)
        if self._spread is None:
            return offset if offset < self.head else None
        return self._spread.at_or_after(partition, offset)

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


def read_index(
    index: Index,
    topic: Topic,
    known: int,
    totals: list[tuple[int, int]],
    heard: Callable[[int, int, int, Message], None],
) -> None:
    """Fill the index of a topic that recovery has brought back.

    Up to offset `known` the totals are those of a checkpoint; what came behind is read, and messages with an envelope
    are told: nobody keeps anything of the others. Raises OSError.
    """
    for partition, (count, size) in zip(index.parts, totals, strict=False):
        partition.count, partition.size = count, size
    single = len(index.parts) == 1
    places: dict[bytes | None, int] = {tag_of(number).encode(): number for number in range(len(index.parts))}
    places[None] = 0
    known = max(known, index.start)
    for part in list(topic.parts(known + 1 if single else index.start + 1)):
        source = topic.source(part)
        if source is None:
            continue
        begin = min(max(index.start - part.first_seq + 1, 0), part.count)
        first = min(max(known - part.first_seq + 1, 0), part.count)
        numbers: list[int] = []
        if not single:
            numbers = [places[tag] for tag in source.tags(begin, part.count) or [None] * (part.count - begin)]
        index.place(part.first_seq + begin - 1, numbers)
        if first < part.count:
            # One call for all of a part: at a start there may be a million messages.
            messages = _decode(b"[%b]" % b",".join(source.data(first, part.count)))
            offset = part.first_seq + first - 1
            numbers = [0] * len(messages) if single else numbers[first - begin :]
            _count(index, numbers, messages)
            index.head = max(index.head, offset + len(messages))
            times = source.times(first, part.count)
            for row, message in enumerate(messages):
                if message.envelope is not None:
                    heard(numbers[row], offset + row, times if isinstance(times, int) else times[row], message)
    index.head = max(index.head, topic.head)


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
