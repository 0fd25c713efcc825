"""Which messages a topic has, per partition: their offsets in order, how many and how large they are.

Offsets are the topic's: message `n` of the log is offset `n - 1`. A topic of one partition stores nothing per message;
one of several keeps the offsets of each partition as packed numbers, found again at a start in the blocks' tags, which
hold the partition as `p<k>`.

`incoming` is what has been sent to the log and is not committed: it counts for backpressure and for nothing else.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable

from msgspec import json

from driftq.engine.topic import Topic
from driftq.model.envelope import Message

_decode = json.Decoder(list[Message]).decode


def tag_of(partition: int) -> str:
    """The tag of a partition's records."""
    return f"p{partition}"


class Partition:
    """One partition's messages."""

    __slots__ = ("count", "incoming", "incoming_size", "offsets", "retired", "size")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        """Bytes of keys and values."""
        self.incoming = 0
        self.incoming_size = 0
        self.offsets: array[int] | None = None
        self.retired: dict[int, int] = {}
        """Messages that are done for every group, and their sizes."""


class Index:
    """All messages of one topic."""

    def __init__(self, partitions: int) -> None:
        self.parts = [Partition() for _ in range(partitions)]
        self.head = 0
        """One more than the highest offset there is."""
        if partitions > 1:
            for part in self.parts:
                part.offsets = array("Q")

    def add(self, partition: int, offset: int, size: int) -> None:
        """A message, at the end."""
        part = self.parts[partition]
        part.count += 1
        part.size += size
        if part.offsets is not None:
            part.offsets.append(offset)
        self.head = max(self.head, offset + 1)

    def at_or_after(self, partition: int, offset: int) -> int | None:
        """The first message of a partition that is not below an offset."""
        offsets = self.parts[partition].offsets
        if offsets is None:
            return max(offset, 0) if offset < self.head else None
        place = bisect_left(offsets, offset)
        return offsets[place] if place < len(offsets) else None

    def has(self, partition: int, offset: int) -> bool:
        """Is there such a message?"""
        return self.at_or_after(partition, offset) == offset

    def partition_at(self, offset: int) -> int | None:
        """The partition of a message."""
        return next((number for number in range(len(self.parts)) if self.has(number, offset)), None)


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
    places = {tag_of(number).encode(): number for number in range(len(index.parts))}
    adders = {tag: _adder(index.parts[number]) for tag, number in places.items()}
    for part in list(topic.parts(known + 1 if single else 0)):
        source = topic.source(part)
        if source is None:
            continue
        first = min(max(known - part.first_seq + 1, 0), part.count)
        tags = None if single else source.tags(0, part.count)
        if tags is not None:
            for offset, tag in enumerate(tags[:first], part.first_seq - 1):
                adders[tag or b"p0"](offset)
        if first < part.count:
            # One call for all of a part: at a start there may be a million messages.
            messages = _decode(b"[%b]" % b",".join(source.data(first, part.count)))
            offset = part.first_seq + first - 1
            numbers = [0] * len(messages) if tags is None else [places[tag or b"p0"] for tag in tags[first:]]
            _count(index, numbers, offset, messages)
            times = source.times(first, part.count)
            for row, message in enumerate(messages):
                if message.envelope is not None:
                    heard(numbers[row], offset + row, times if isinstance(times, int) else times[row], message)
    index.head = max(index.head, topic.head)


def _count(index: Index, numbers: list[int], offset: int, messages: list[Message]) -> None:
    """Messages that follow one another from an offset on, with the partition of each."""
    if len(index.parts) > 1:
        for row, (number, message) in enumerate(zip(numbers, messages, strict=True)):
            index.add(number, offset + row, message.size)
        return
    part = index.parts[0]
    text = "".join([message.key for message in messages]) + "".join([message.value for message in messages])
    part.count += len(messages)
    part.size += len(text if text.isascii() else text.encode())
    index.head = max(index.head, offset + len(messages))


def _adder(partition: Partition) -> Callable[[int], None]:
    offsets = partition.offsets
    return (lambda _: None) if offsets is None else offsets.append
