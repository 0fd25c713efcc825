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


class Hole(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A seq range inside the log that holds no record through no wish of the reader. Both ends included."""

    first: int
    last: int
    reason: Reason
    at_most: bool = False
    """Whether only some of the seqs, or none of them, may have had a record that was acked."""


class Tombstone(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="$type",
    tag="tombstone",
    rename={"seq": "$seq"},
):
    """One gap. Reading resumes at `seq`."""

    seq: int
    gap_from: int
    gap_to: int
    reason: Reason
    missed_estimate: int
    earliest_seq: int
    head_seq: int
    at_most: bool = False
    """Whether `missed_estimate` is an upper bound: after a crash it is not known which of the seqs had a record."""

    def text(self) -> str:
        """Return what happened, in words."""
        if self.reason is Reason.RECREATED:
            return (
                f"the cursor is above the head {self.head_seq}, or the topic was deleted and created again since;"
                f" reading starts at seq {self.earliest_seq}"
            )
        count = (
            f"up to {self.missed_estimate} records may be" if self.at_most else f"{self.missed_estimate} records are"
        )
        return f"{count} gone: seq {self.gap_from} to {self.gap_to}, {self.reason.value}"
