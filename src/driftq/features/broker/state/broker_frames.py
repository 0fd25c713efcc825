"""The bodies of the frames of kinds 64 to 71, and of the checkpoint's section `groups`, as msgpack arrays.

Fields may be added at the end, never moved. docs/formats/groups.md has them as a table.
"""

from enum import IntEnum

from msgspec import Struct, msgpack


class GroupKind(IntEnum):
    """Kinds of the broker's frames, of topics and of groups. A number is never reused."""

    TOPIC = 64
    OFFSET = 65
    """A message is done, and no message above it is."""
    GAP = 66
    """A message is done below the highest done one."""
    RETRY = 67
    SEEK = 68
    RETIRED = 69
    """A message is done for every group, including future ones."""
    TRIM = 70
    DONE = 71
    """Several messages are done, of any groups and partitions."""


class BrokerTopicFrame(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind TOPIC: makes a log a topic of the broker with this name and number of partitions."""

    name: str
    partitions: int


class DoneBody(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kinds OFFSET and GAP: a message is done. `size` counts key and value.

    If `key` is set, it is committed for `tenant`. `attempts` is the number of deliveries; 0 means that the message was
    never delivered, because its key was committed.
    """

    group: str
    partition: int
    offset: int
    size: int
    tenant: str = ""
    key: str = ""
    attempts: int = 1


class ManyDoneBody(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind DONE: equal to one frame of kind OFFSET or GAP per fact, in this order."""

    facts: list[DoneBody]


class RetryBody(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind RETRY: a delivery failed. Times are moments of engine time. If `key` is set, it failed for `tenant`."""

    group: str
    partition: int
    offset: int
    attempts: int
    last_error: str
    failed_at: int
    next_at: int
    tenant: str = ""
    key: str = ""
    doomed: bool = False
    """Whether the message is not tried again, but becomes a dead letter."""


class Landing(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The target of a seek in one partition: all messages up to `floor` are done; `count` and `size`
    are their totals.
    """

    partition: int
    floor: int
    count: int
    size: int


class SeekFrame(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind SEEK: moves a group to new positions."""

    group: str
    landings: list[Landing]


class RetiredBody(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind RETIRED: a message is done for every group. `size` counts key and value."""

    partition: int
    offset: int
    size: int


class Trimmed(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The messages that a trim removes from one partition."""

    partition: int
    count: int
    size: int


class TrimBody(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind TRIM: retention removes every message below `start`; each was done for every group."""

    start: int
    taken: list[Trimmed]


class RetryState(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The state of a message whose delivery failed."""

    attempts: int
    last_error: str
    next_at: int
    doomed: bool = False


class GroupPartitionState(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The state of a group in one partition."""

    partition: int
    floor: int
    ranges: list[tuple[int, int]]
    count: int
    size: int
    caught_up: bool
    retries: dict[int, RetryState]


class BrokerTopicCheckpoint(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A topic. `totals` are count and bytes per partition, of the messages with an offset below `known`."""

    name: str
    partitions: int
    known: int
    totals: list[tuple[int, int]]
    groups: dict[str, list[GroupPartitionState]]
    retired: list[RetiredBody] = []
    start: int = 0
    """Retention has removed all messages below this offset."""


encode = msgpack.encode
decode_topic = msgpack.Decoder(BrokerTopicFrame).decode
decode_done = msgpack.Decoder(DoneBody).decode
decode_many_done = msgpack.Decoder(ManyDoneBody).decode
decode_retry = msgpack.Decoder(RetryBody).decode
decode_seek = msgpack.Decoder(SeekFrame).decode
decode_retired = msgpack.Decoder(RetiredBody).decode
decode_trim = msgpack.Decoder(TrimBody).decode
decode_section = msgpack.Decoder(dict[int, BrokerTopicCheckpoint]).decode
