"""Acks of many messages of a group in one call (http-v1 §22): one fact and one answer for those that end together.

    found → those that can be acked at once: one lot per partition → finished together
          → every other one: acked by itself, after the lots

A message is in a lot if its owner asks and nothing is under way for it. Everything else (it is done, it is settling,
somebody else has it, there is no such message, it is named twice) takes the way of a single ack, which says what is
true of it. The messages of a lot share one log record, one wake-up of their group and one answer.
"""

from collections.abc import Callable, Sequence
from functools import partial

from driftq.features.broker.consumer.deadlines import Spot
from driftq.features.broker.consumer.message_settlement import MessageSettler
from driftq.features.broker.protocols import DeliveryKey
from driftq.features.broker.state.broker_state import Book
from driftq.features.broker.state.group_partition import OpenDelivery
from driftq.system.runtime import Pending

Acked = Pending[None] | Exception
"""The answer to an ack, or what was raised instead: a DriftQError that refuses it, or a bug."""


class _Lot:
    """Messages of one partition."""

    def __init__(self, spot: Spot | None) -> None:
        self.spot = spot
        self.entries: dict[int, OpenDelivery] = {}
        """By offset."""
        self.numbers: list[int] = []
        """Which entries of the call they are."""


def ack_all(
    book: Book, settler: MessageSettler, topic: str, group: str, owner: str, messages: Sequence[tuple[int, int]]
) -> list[Acked]:
    """Ack messages, given as partition and offset; return the answer of each, in order."""
    answers: list[Acked | None] = [None] * len(messages)
    lots: dict[int, _Lot] = {}
    for number, (partition, offset) in enumerate(messages):
        lot = lots.get(partition)
        if lot is None:
            lot = lots[partition] = _Lot(_spot(book, topic, group, partition))
        if lot.spot is None or offset in lot.entries:
            continue
        try:
            entry = settler.ackable(lot.spot, offset, owner)
        except Exception as error:  # noqa: BLE001  # a bug with one message is the answer to its entry alone
            answers[number] = error
            continue
        if entry is not None:
            lot.entries[offset] = entry
            lot.numbers.append(number)
    for lot in lots.values():
        if lot.spot is not None and lot.entries:
            acked = _asked(partial(settler.finish, lot.spot, list(lot.entries.values()), commits=True))
            for number in lot.numbers:
                answers[number] = acked
    return [
        _asked(partial(settler.ack, DeliveryKey(topic, group, *at), owner)) if answer is None else answer
        for at, answer in zip(messages, answers, strict=True)
    ]


def _spot(book: Book, topic: str, group: str, partition: int) -> Spot | None:
    """Return where messages of a group are open, if it has a lane there."""
    found = book.by_name.get(topic)
    known = None if found is None else found.groups.get(group)
    lane = None if known is None else known.lanes.get(partition)
    return None if found is None or known is None or lane is None else Spot(found, known, lane)


def _asked(call: Callable[[], Pending[None]]) -> Acked:
    try:
        return call()
    except Exception as error:  # noqa: BLE001  # it is the answer to some entries: the others are asked all the same
        return error
