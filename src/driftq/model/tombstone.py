"""The reader-visible notice of involuntary loss (http-v0 §4.5), and the holes that cause some of them."""

from enum import StrEnum

from msgspec import Struct


class Reason(StrEnum):
    """Why records are missing that nobody asked to lose."""

    CAP = "cap"
    TTL = "ttl"
    MIXED = "mixed"
    RECREATED = "recreated"
    SOURCE_TRIM = "source_trim"
    CRASH = "crash"
    CORRUPTION = "corruption"
    FROM_SEQ_TOO_OLD = "from_seq_too_old"
    """What a stream says for cap, TTL or both where it begins behind the floor; never a hole's."""


class Hole(Struct, frozen=True, array_like=True):
    """A seq range inside the log that holds no record through no wish of the reader. Both ends included."""

    first: int
    last: int
    reason: Reason


class Tombstone(Struct, frozen=True, kw_only=True, tag_field="$type", tag="tombstone", rename={"seq": "$seq"}):
    """One gap. Reading resumes at `seq`."""

    seq: int
    gap_from: int
    gap_to: int
    reason: Reason
    missed_estimate: int
    earliest_seq: int
    head_seq: int
