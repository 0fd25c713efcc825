"""Acks of many messages of a group in one call (http-v1 §22): messages that end together share one log record.

    found → those that can be acked at once: one batch per partition → finished together
          → every other one: acked by itself, after the batches

A batch contains the messages of one partition that the caller owns and that nothing else is settling. All others (done,
settling, owned by another consumer, missing, or named twice) are acked one by one, which gives the right answer for
each. The messages of a batch share one log record, one wake-up of their group and one answer.
"""

from collections.abc import Callable, Sequence
from functools import partial

from driftq.features.broker.consumer.deadlines import OpenMessage
from driftq.features.broker.consumer.message_settlement import MessageSettler
from driftq.features.broker.protocols import DeliveryKey
from driftq.features.broker.state.broker_state import BrokerState
from driftq.features.broker.state.group_partition import OpenDelivery
from driftq.system.runtime import Pending

Acked = Pending[None] | Exception
"""The answer to an ack, or the exception raised instead: a DriftQError that refuses it, or a bug."""


class _AckBatch:
    """Messages of one partition that are acked together."""

    def __init__(self, open_message: OpenMessage | None) -> None:
        self.open_message = open_message
        self.entries: dict[int, OpenDelivery] = {}
        """The open messages of the batch, by offset."""
        self.numbers: list[int] = []
        """The positions of the messages in the call."""


def ack_all(
    broker_state: BrokerState,
    settler: MessageSettler,
    topic: str,
    group: str,
    owner: str,
    messages: Sequence[tuple[int, int]],
) -> list[Acked]:
    """Ack messages, given as partition and offset. Return the answer for each, in order."""
    answers: list[Acked | None] = [None] * len(messages)
    batches: dict[int, _AckBatch] = {}
    for number, (partition, offset) in enumerate(messages):
        batch = batches.get(partition)
        if batch is None:
            batch = batches[partition] = _AckBatch(_open_message(broker_state, topic, group, partition))
        if batch.open_message is None or offset in batch.entries:
            continue
        try:
            entry = settler.ackable(batch.open_message, offset, owner)
        except Exception as error:  # noqa: BLE001  # a bug with one message is the answer to its entry alone
            answers[number] = error
            continue
        if entry is not None:
            batch.entries[offset] = entry
            batch.numbers.append(number)
    for batch in batches.values():
        if batch.open_message is not None and batch.entries:
            acked = _asked(partial(settler.finish, batch.open_message, list(batch.entries.values()), commits=True))
            for number in batch.numbers:
                answers[number] = acked
    return [
        _asked(partial(settler.ack, DeliveryKey(topic, group, *at), owner)) if answer is None else answer
        for at, answer in zip(messages, answers, strict=True)
    ]


def _open_message(broker_state: BrokerState, topic: str, group: str, partition: int) -> OpenMessage | None:
    """Return the place of a group's open messages in a partition, or None."""
    found = broker_state.by_name.get(topic)
    known = None if found is None else found.groups.get(group)
    group_partition = None if known is None else known.group_partitions.get(partition)
    return (
        None
        if found is None or known is None or group_partition is None
        else OpenMessage(found, known, group_partition)
    )


def _asked(call: Callable[[], Pending[None]]) -> Acked:
    try:
        return call()
    except Exception as error:  # noqa: BLE001  # the error answers some entries; the others are acked anyway
        return error
