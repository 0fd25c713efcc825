"""Messages as records: their JSON, their partition, and how they are read."""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct, json

from driftq.engine.block_fetch import Fetch
from driftq.engine.engine import Engine
from driftq.engine.state.topic import Topic
from driftq.model.message import DlqNote, Envelope, Message, RetryPolicy, Routing

_PAGE_BYTES = 1 << 20
_AHEAD_BYTES = 256 << 10
_PRIME, _BASIS, _U32 = 0x01000193, 0x811C9DC5, 0xFFFFFFFF


class _Stored(Struct, frozen=True, omit_defaults=True):
    """The `data` of a record: key and value are always present."""

    key: str
    value: str
    envelope: Envelope | None = None
    routing: Routing | None = None


_encode = json.Encoder().encode
_decode = json.Decoder(Message).decode
_decode_all = json.Decoder(list[Message]).decode


def to_data(message: Message) -> bytes:
    """Return the stored JSON of a message."""
    return _encode(_Stored(message.key, message.value, message.envelope, message.routing))


def dead_letter(message: Message, note: DlqNote) -> Message:
    """Return the dead letter of a message: a copy without target topic, with `note`.

    The retry policy moves to `redrive_policy`, from which a redrive takes it.
    """
    known = message.envelope or Envelope()
    policy: RetryPolicy | None = known.retry_policy
    envelope = Envelope(
        run_id=known.run_id,
        step_id=known.step_id,
        parent_step_id=known.parent_step_id,
        labels=known.labels,
        idempotency_key=known.idempotency_key,
        tenant_id=known.tenant_id,
        deadline=known.deadline,
        dlq=note,
        redrive_policy=policy,
    )
    return Message(message.value, message.key, envelope, message.routing)


class FoundMessage(NamedTuple):
    """A message with its offset and time."""

    offset: int
    ts: int
    message: Message


class Read(NamedTuple):
    """A message, and when it was stored."""

    message: Message
    ts: int
    stored_size: int | None = None
    """The size of its JSON in bytes; None if it was not read from a record."""


def read_messages(engine: Engine, topic: Topic, offsets: Sequence[int]) -> dict[int, Read] | Fetch:
    """Return messages by offset, up to `_AHEAD_BYTES`, or the Fetch to wait for before the next call.

    `offsets` are ascending. Lost messages are left out. Raise DriftQError.
    """
    slices = engine.rows(topic, [offset + 1 for offset in offsets], _AHEAD_BYTES)
    if isinstance(slices, Fetch):
        return slices
    found: dict[int, Read] = {}
    for source, rows in slices:
        first, last = rows[0], rows[-1] + 1
        data = source.data(first, last)
        times = source.times(first, last)
        wanted = data if len(data) == len(rows) else [data[row - first] for row in rows]
        messages = _decode_all(b"[%b]" % b",".join(wanted))
        for row, message, stored in zip(rows, messages, wanted, strict=True):
            ts = times if isinstance(times, int) else times[row - first]
            found[source.first_seq + row - 1] = Read(message, ts, len(stored))
    return found


async def read_page(engine: Engine, topic: Topic, offset: int, end: int) -> tuple[list[FoundMessage], int]:
    """Return messages from `offset` to before `end`, up to `_PAGE_BYTES`, and the offset to continue from.

    Lost messages are left out.
    """
    seqs = range(offset + 1, end + 1)
    slices = engine.rows(topic, seqs, _PAGE_BYTES)
    while isinstance(slices, Fetch):
        await slices
        slices = engine.rows(topic, seqs, _PAGE_BYTES)
    found: list[FoundMessage] = []
    for source, rows in slices:
        for row in rows:
            times = source.times(row, row + 1)
            ts = times if isinstance(times, int) else times[0]
            found.append(FoundMessage(source.first_seq + row - 1, ts, _decode(source.data(row, row + 1)[0])))
    # If the byte limit was reached, continue after the last message; otherwise the missing messages are lost.
    return found, found[-1].offset + 1 if 0 < len(found) < len(seqs) else end


async def wait_for_message(engine: Engine, topic: Topic, offset: int) -> Message | None:
    """Return one message, waiting for its block if needed; None if it is lost."""
    found = read_messages(engine, topic, [offset])
    while isinstance(found, Fetch):
        await found
        found = read_messages(engine, topic, [offset])
    return found[offset].message if offset in found else None


def fnv1a32(text: str) -> int:
    """Return the hash that places keys in partitions; it must never change."""
    value = _BASIS
    for byte in text.encode():
        value = (value ^ byte) * _PRIME & _U32
    return value


def partition_of(key: str, partitions: int) -> int:
    """Return the partition of a message whose producer did not choose one."""
    return fnv1a32(key) % partitions if key and partitions > 1 else 0
