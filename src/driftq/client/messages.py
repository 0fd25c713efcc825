"""The messages of a broker topic without a group, as they can be read through v0 (http-v1 §18.1)."""

from msgspec import Struct, convert

from driftq.client.calls import Calls, path_of
from driftq.client.plan import Flow
from driftq.client.reading import read_pages
from driftq.model.answers import Record
from driftq.model.envelope import Message
from driftq.model.names import broker_topic
from driftq.model.tombstone import Tombstone


class StoredMessage(Struct, frozen=True):
    """A message where it is stored."""

    partition: int
    offset: int
    ts: int
    message: Message


def stored_messages(
    calls: Calls, topic: str, from_offset: int, *, may_be_absent: bool = False
) -> Flow[StoredMessage | Tombstone]:
    """Yield every message from an offset on."""
    path = path_of("v0", "topics", broker_topic(topic))
    return read_pages(calls, path, _stored, from_seq=from_offset, may_be_absent=may_be_absent)


def _stored(record: Record) -> StoredMessage:
    partition = int((record.tag or "p0")[1:])
    return StoredMessage(partition, record.seq - 1, record.ts, convert(record.data, Message))
