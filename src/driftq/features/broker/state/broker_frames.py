"""The bodies of the frames of kinds 64 to 71, and of the checkpoint's section `groups`, as msgpack arrays.

Fields may be added at the end, never moved. docs/formats/groups.md has them as a table.
"""

from enum import IntEnum

from msgspec import Struct, msgpack


class GroupKind(IntEnum):
    """Numbers of frame kinds, never used again."""

    TOPIC = 64
    OFFSET = 65
    """A message is done, and none above it is."""
    GAP = 66
    """A message is done below the highest one."""
    RETRY = 67
    SEEK = 68
    RETIRED = 69
    """A message is done for every group, those to come too."""
    TRIM = 70
    DONE = 71
    """Messages are done, of any groups and partitions."""


class BrokerTopicFrame(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind TOPIC: a log is a topic of the broker, of this name and so many partitions."""

    name: str
    partitions: int


class DoneBody(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kinds OFFSET and GAP. `size` is of key and value; a key is committed for its tenant where there is one.

    `attempts` is how often it was delivered: more than once, or never where its key was committed.
    """

    group: str
    partition: int
    offset: int
    size: int
    tenant: str = ""
    key: str = ""
    attempts: int = 1


class ManyDoneBody(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind DONE: as one frame of kind OFFSET or GAP each, in this order."""

    facts: list[DoneBody]


class RetryBody(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind RETRY: a delivery failed. Times are moments of engine time. A key failed for its tenant, if there is one."""

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
    """It is not to be tried again: a dead letter is made of it."""


class Landing(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a seek puts one partition: all up to `floor` is done, which is so many messages and bytes."""

    partition: int
    floor: int
    count: int
    size: int


class SeekFrame(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind SEEK."""

    group: str
    landings: list[Landing]


class RetiredBody(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind RETIRED. `size` is of key and value."""

    partition: int
    offset: int
    size: int


class Trimmed(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a trim takes of one partition."""

    partition: int
    count: int
    size: int


class TrimBody(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind TRIM: retention takes every message below `start`; each was done for every group."""

    start: int
    taken: list[Trimmed]


class RetryState(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is known of a message that failed."""

    attempts: int
    last_error: str
    next_at: int
    doomed: bool = False


class LaneState(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A group in one partition."""

    partition: int
    floor: int
    ranges: list[tuple[int, int]]
    count: int
    size: int
    caught_up: bool
    retries: dict[int, RetryState]


class BrokerTopicCheckpoint(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A topic: `known` messages are in the totals, which are count and bytes per partition."""

    name: str
    partitions: int
    known: int
    totals: list[tuple[int, int]]
    groups: dict[str, list[LaneState]]
    retired: list[RetiredBody] = []
    start: int = 0
    """Retention has taken what is below."""


encode = msgpack.encode
decode_topic = msgpack.Decoder(BrokerTopicFrame).decode
decode_done = msgpack.Decoder(DoneBody).decode
decode_many_done = msgpack.Decoder(ManyDoneBody).decode
decode_retry = msgpack.Decoder(RetryBody).decode
decode_seek = msgpack.Decoder(SeekFrame).decode
decode_retired = msgpack.Decoder(RetiredBody).decode
decode_trim = msgpack.Decoder(TrimBody).decode
decode_section = msgpack.Decoder(dict[int, BrokerTopicCheckpoint]).decode
