"""Many messages in one call (http-v1 §22): all or none, or each on its own.

The hook decides about all of them first. From then on, everything up to the append is one step on the event loop, so
no other call comes in between. Messages that are stored together are one write to one log: all of it exists, or none.
Of two messages with the same key, the second is a duplicate of the first and shares its outcome.
"""

from collections.abc import Sequence

from driftq.errors import DriftQError, InvalidRequestError
from driftq.features.broker.producer.producer import CheckedMessage, Key, MessageWriter, target_of
from driftq.features.broker.protocols import Produced
from driftq.model.message import Message
from driftq.system.runtime import Pending

Outcome = Produced | DriftQError
Given = Sequence[tuple[Message, int | None]]
"""Messages, each with its deadline or None."""


async def store_batch(producer: MessageWriter, topic: str, messages: Given, *, atomic: bool) -> list[Outcome]:
    """Store messages. Return the outcome of each. Raise a DriftQError if all of them are refused."""
    asked = [producer.routed(topic, message) for message, _ in messages]
    routed: list[tuple[Message | DriftQError, int | None]] = []
    for one, (_, deadline_ms) in zip(asked, messages, strict=True):
        try:
            routed.append((await one if isinstance(one, Pending) else one, deadline_ms))
        except DriftQError as error:
            routed.append((error, deadline_ms))
    if not atomic:
        return await _apart(producer, topic, routed)
    refused = next((error for error, _ in routed if isinstance(error, DriftQError)), None)
    if refused is not None:
        raise refused
    return await _together(producer, topic, [(one, until) for one, until in routed if isinstance(one, Message)])


async def _apart(
    producer: MessageWriter, topic: str, messages: Sequence[tuple[Message | DriftQError, int | None]]
) -> list[Outcome]:
    under_way: list[Pending[Produced] | DriftQError | int] = []
    first: dict[Key, int] = {}
    for number, (message, deadline_ms) in enumerate(messages):
        if isinstance(message, DriftQError):
            under_way.append(message)
            continue
        _, key = target_of(topic, message)
        if key in first:
            under_way.append(first[key])
            continue
        try:
            under_way.append(producer.admit(topic, message, deadline_ms))
        except DriftQError as error:
            under_way.append(error)
        else:
            if key is not None:
                first[key] = number
    outcomes: list[Outcome] = []
    for one in under_way:
        outcomes.append(_duplicate(outcomes[one]) if isinstance(one, int) else await _outcome(one))
    return outcomes


async def _outcome(one: Pending[Produced] | DriftQError) -> Outcome:
    if isinstance(one, DriftQError):
        return one
    try:
        return await one
    except DriftQError as error:
        return error


def _duplicate(first: Outcome) -> Outcome:
    return first if isinstance(first, DriftQError) else Produced(first.topic, duplicate=True)


async def _together(producer: MessageWriter, topic: str, messages: Given) -> list[Outcome]:
    held: list[CheckedMessage] = []
    keys: dict[Key, None] = {}
    """The keys that were reserved for this batch."""
    rows: list[CheckedMessage | Produced] = []
    try:
        for message, deadline_ms in messages:
            producer.check_deadline(deadline_ms)
            final, key = target_of(topic, message)
            if key is not None:
                if key in keys or producer.take(key):
                    rows.append(Produced(final, duplicate=True))
                    continue
                keys[key] = None
            placed = producer.place(final, message, key)
            if held and placed.topic is not held[0].topic:
                raise InvalidRequestError("all messages of an atomic batch must go to one topic")
            placed.hold()
            held.append(placed)
            rows.append(placed)
        appended = producer.append(held[0].topic, held) if held else None
    except DriftQError:
        for placed in held:
            placed.let_go()
        for key in keys:
            producer.give_back(key)
        raise
    if appended is None:
        return [row for row in rows if isinstance(row, Produced)]
    stored = await appended
    places = iter(range(len(held)))
    return [row.at(stored, next(places)) if isinstance(row, CheckedMessage) else row for row in rows]
