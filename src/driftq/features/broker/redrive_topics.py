"""The broker's topics for a redrive: reads letters, stores messages without any check, retires letters."""

from driftq.engine.engine import Engine
from driftq.features.broker.producer.producer import MessageWriter
from driftq.features.broker.protocols import Produced
from driftq.features.broker.redrive import WaitingLetter
from driftq.features.broker.state.broker_frames import GroupKind, RetiredBody, encode
from driftq.features.broker.state.broker_state import BrokerState
from driftq.features.broker.state.stored_messages import read_page
from driftq.model.message import Message
from driftq.system.runtime import Pending, run


class BrokerRedriveTopics:
    """Implements `redrive.RedriveTopics` with the topics of a broker."""

    def __init__(self, engine: Engine, broker_state: BrokerState, producer: MessageWriter) -> None:
        self._engine = engine
        self._broker_state = broker_state
        self._producer = producer

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic. Raise InvalidRequestError if the topic does not exist."""
        return self._broker_state.find(topic).partitions

    def has(self, topic: str) -> bool:
        """Whether a topic with this name exists."""
        return topic in self._broker_state.by_name

    def read(self, topic: str, offset: int, limit: int) -> Pending[tuple[list[WaitingLetter], int | None]]:
        """Return up to `limit` messages from an offset on that are not retired, and the next offset if
        there are more.
        """
        return run(self._read(topic, offset, limit))

    async def _read(self, name: str, offset: int, limit: int) -> tuple[list[WaitingLetter], int | None]:
        topic = self._broker_state.find(name)
        index = topic.index
        page, reached = await read_page(self._engine, topic.log, offset, min(offset + limit, index.head))
        letters = [
            WaitingLetter(partition, found.offset, found.message)
            for found in page
            if (partition := index.partition_at(found.offset)) is not None
            and found.offset not in index.parts[partition].retired
        ]
        return letters, reached if reached < index.head else None

    def deposit(self, topic: str, message: Message, *, partition: int | None = None) -> Pending[Produced]:
        """Store a message without asking hook, idempotency and limits. The topic is created if needed."""
        return self._producer.copy(topic, 1, message, partition=partition)

    def retire(self, topic: str, letter: WaitingLetter) -> Pending[None]:
        """Record that a message is done for every group, including future ones."""
        body = RetiredBody(letter.partition, letter.offset, letter.message.size)
        return self._broker_state.log(self._broker_state.find(topic), GroupKind.RETIRED, encode(body))
