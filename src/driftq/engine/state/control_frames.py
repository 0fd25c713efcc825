"""The bodies of the engine's control frames, as msgpack arrays: fields may be added at the end, never moved.

A version that does not know a field refuses the body, so that it never drops what the field means without an error.
"""

from typing import TypeVar

from msgspec import Struct, msgpack

from driftq.model.tombstone import Reason
from driftq.model.topic_config import TopicConfig


class TopicFrame(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind TOPIC: create and update. Contains floors and head, which never decrease, to explain any jump."""

    name: str
    config: TopicConfig
    created_ts: int
    head: int = 0
    earliest: int = 1
    cap_lost: int = 0
    ttl_lost: int = 0
    reserved: int = 0


class DeleteFrame(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind DELETE. Never deletes a seq at or above `bound`; a selector that is None is not used."""

    bound: int
    before: int | None = None
    tag: bytes | None = None
    prefix: bytes | None = None
    seqs: list[int] | None = None


class WatermarkBody(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind HEAD_WATERMARK: `disk` seqs up to `reserved` may have been given out."""

    reserved: int


class HoleBody(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind HOLE: a block that was found damaged when it was read."""

    first: int
    last: int
    reason: Reason


class FloorsBody(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind FLOORS: the floors of a topic that has records of an `ephemeral` time."""

    earliest: int
    cap_lost: int
    ttl_lost: int


class TimeSeenBody(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind TIME_SEEN: expiry has been decided for this moment of engine time, or is about to be."""

    moment: int


COMMIT = 81
"""The kind of the frame that closes a publication; the number is in the range of staged writes."""


class WriterTag(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The writer column of a publication's Append frames: the writer's name and its batch number."""

    writer: str
    batch: int


class CommitBody(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind COMMIT: the Append frames before it with this writer and batch have the seqs `first` to `last`."""

    writer: str
    batch: int
    first: int
    last: int


_encoder = msgpack.Encoder()
_T = TypeVar("_T", bound=Struct)
_decoders: dict[type[Struct], msgpack.Decoder[Struct]] = {}


def encode_body(body: Struct) -> bytes:
    """Encode a body as a msgpack array."""
    return _encoder.encode(body)


class _StrictConfig(TopicConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A config as stored. Callers of the API may send unknown fields; a stored one with any is from a newer version."""


class _Named(Struct, array_like=True):
    """The first fields of a TOPIC body."""

    name: str
    config: _StrictConfig


class _Numbered(Struct, array_like=True):
    """Id, name and config of a topic in a checkpoint.

    They are decoded only to refuse config fields that this version does not know.
    """

    topic_id: int
    name: str
    config: _StrictConfig


_check_named = msgpack.Decoder(_Named).decode
check_stored_config = msgpack.Decoder(_Numbered).decode
"""Raise DecodeError for a topic of a checkpoint whose config has fields that this version does not know."""


def decode_body(kind: type[_T], body: bytes) -> _T:
    """Decode a body. Raises DecodeError if it has fields that this version does not know."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgpack.Decoder(kind)
    if kind is TopicFrame:
        _check_named(body)
    decoded = decoder.decode(body)
    assert isinstance(decoded, kind)
    return decoded
