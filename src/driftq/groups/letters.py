"""What a redrive does with the broker's topics: reads letters, stores messages past every gate, retires letters."""

from msgspec import json

from driftq.engine.engine import Engine
from driftq.engine.fetching import Fetch
from driftq.groups.book import Book
from driftq.groups.frames import GroupKind, RetiredBody, encode
from driftq.groups.ports import Produced
from driftq.groups.produce import Producer
from driftq.groups.redrive import Letter
from driftq.model.envelope import Message
from driftq.seam.runtime import Pending, run

_PAGE_BYTES = 1 << 20

_decode = json.Decoder(Message).decode


class BrokerLetters:
    """`redrive.Letters` on a broker."""

    def __init__(self, engine: Engine, book: Book, producer: Producer) -> None:
        self._engine = engine
        self._book = book
        self._producer = producer

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has. Raises InvalidRequestError where there is no such topic."""
        return self._book.find(topic).partitions

    def has(self, topic: str) -> bool:
        """Is there such a topic?"""
        return topic in self._book.by_name

    def read(self, topic: str, offset: int, limit: int) -> Pending[tuple[list[Letter], int | None]]:
        """Up to so many messages from an offset on that are not retired, and where to go on, if there are more."""
        return run(self._read(topic, offset, limit))

    async def _read(self, name: str, offset: int, limit: int) -> tuple[list[Letter], int | None]:
        topic = self._book.find(name)
        end = min(offset + limit, topic.index.head)
        seqs = range(offset + 1, end + 1)
        slices = self._engine.rows(topic.log, seqs, _PAGE_BYTES)
        while isinstance(slices, Fetch):
            await slices
            slices = self._engine.rows(topic.log, seqs, _PAGE_BYTES)
        found: list[Letter] = []
        last = -1
        for source, rows in slices:
            for row in rows:
                last = source.first_seq + row - 1
                partition = topic.index.partition_at(last)
                if partition is not None and last not in topic.index.parts[partition].retired:
                    found.append(Letter(partition, last, _decode(source.data(row, row + 1)[0])))
        # Where the bytes ran out it goes on behind the last one; else what is missing is lost.
        fetched = sum(len(rows) for _, rows in slices)
        reached = last + 1 if 0 < fetched < len(seqs) else end
        return found, reached if reached < topic.index.head else None

    def deposit(self, topic: str, message: Message, *, partition: int | None = None) -> Pending[Produced]:
        """Store a message whatever hook, gate and limits would say; the topic is made if it is not there."""
        return self._producer.copy(topic, 1, message, partition=partition)

    def retire(self, topic: str, letter: Letter) -> Pending[None]:
        """A message is done for every group, those to come too."""
        body = RetiredBody(letter.partition, letter.offset, letter.message.size)
        return self._book.log(self._book.find(topic), GroupKind.RETIRED, encode(body))
