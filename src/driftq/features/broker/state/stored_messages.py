"""Messages as records: their JSON, their place, and reading one back."""

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
    """`data` of a record: key and value are always there."""

    key: str
    value: str
    envelope: Envelope | None = None
    routing: Routing | None = None


_encode = json.Encoder().encode
_decode = json.Decoder(Message).decode
_decode_all = json.Decoder(list[Message]).decode


def to_data(message: Message) -> bytes:
    """The JSON of a message."""
    return _encode(_Stored(message.key, message.value, message.envelope, message.routing))


def dead_letter(message: Message, note: DlqNote) -> Message:
    """Return the dead letter of a message: a copy without target and retry policy, which is kept for a redrive."""
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
    """A message where it was found."""

    offset: int
    ts: int
    message: Message


class Read(NamedTuple):
    """A message, and when it was stored."""

    message: Message
    ts: int
    stored_size: int | None = None
    """Bytes of its JSON, where that was read."""


def read_messages(engine: Engine, topic: Topic, offsets: Sequence[int]) -> dict[int, Read] | Fetch:
    """Messages, ascending, up to so many bytes; or what to wait for before asking again. Lost ones are not among them.

    Raises DriftQError.
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
    """Messages from an offset on, below another, up to so many bytes; and where to go on. Lost ones are left out."""
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
    # Where the bytes ran out it goes on behind the last one; else what is missing is lost.
    return found, found[-1].offset + 1 if 0 < len(found) < len(seqs) else end


async def wait_for_message(engine: Engine, topic: Topic, offset: int) -> Message | None:
    """The same, whatever it has to wait for."""
    found = read_messages(engine, topic, [offset])
    while isinstance(found, Fetch):
        await found
        found = read_messages(engine, topic, [offset])
    return found[offset].message if offset in found else None


def fnv1a32(text: str) -> int:
    """The hash that keys are placed by; it never changes."""
    value = _BASIS
    for byte in text.encode():
        value = (value ^ byte) * _PRIME & _U32
    return value


def partition_of(key: str, partitions: int) -> int:
    """Where a message goes of which nobody says where."""
    return fnv1a32(key) % partitions if key and partitions > 1 else 0
