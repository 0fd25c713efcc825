"""Many messages in one call (http-v1 §22): all or none, or each on its own.

The hook decides about all of them first. From then on, everything up to the append is one step on the event loop, so
no other call comes in between. Messages that are stored together are one write to one log: all of it exists, or none.
Of two messages with the same key, the second is a duplicate of the first and shares its outcome.
"""

from collections.abc import Sequence

from driftq.engine.write.appender import AppendResult
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
    return first if isinstance(first, DriftQError) else first._replace(duplicate=True)


async def _together(producer: MessageWriter, topic: str, messages: Given) -> list[Outcome]:
    held: list[CheckedMessage] = []
    keys: dict[Key, int] = {}
    """The keys that were reserved for this batch, each with the index of its message in `held`."""
    rows: list[int | Produced] = []
    """For each message its index in `held`, or the stored message of which it is a duplicate."""
    try:
        for message, deadline_ms in messages:
            producer.check_deadline(deadline_ms)
            final, key = target_of(topic, message)
            if key is not None:
                if key in keys:
                    rows.append(keys[key])
                    continue
                known = producer.take(final, key)
                if known is not None:
                    rows.append(known)
                    continue
                keys[key] = len(held)
            placed = producer.place(final, message, key)
            if held and placed.topic is not held[0].topic:
                raise InvalidRequestError("all messages of an atomic batch must go to one topic")
            placed.hold()
            rows.append(len(held))
            held.append(placed)
        appended = producer.append(held[0].topic, held) if held else None
    except DriftQError:
        for placed in held:
            placed.let_go()
        for key in keys:
            producer.give_back(key)
        raise
    if appended is None:
        return [row for row in rows if isinstance(row, Produced)]
    return _outcomes(rows, held, await appended)


def _outcomes(rows: list[int | Produced], held: list[CheckedMessage], stored: AppendResult) -> list[Outcome]:
    """Return an outcome per message. Of the messages with one index in `held`, the first is the stored one."""
    outcomes: list[Outcome] = []
    first = 0
    for row in rows:
        if isinstance(row, Produced):
            outcomes.append(row)
        elif row == first:
            outcomes.append(held[row].at(stored, row))
            first += 1
        else:
            outcomes.append(held[row].at(stored, row)._replace(duplicate=True))
    return outcomes
