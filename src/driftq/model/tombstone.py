"""The tombstone that informs a reader of lost records (http-v0 §4.5), and the holes that cause some of them."""

from enum import StrEnum

from msgspec import Struct


class Reason(StrEnum):
    """Why records are missing that no client deleted."""

    CAP = "cap"
    TTL = "ttl"
    MIXED = "mixed"
    RECREATED = "recreated"
    SOURCE_TRIM = "source_trim"
    CRASH = "crash"
    CORRUPTION = "corruption"
    FROM_SEQ_TOO_OLD = "from_seq_too_old"
    """Used by a stream that begins below the floor, for cap, TTL or both. Never the reason of a hole."""


class Hole(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A range of seqs in the log without records that no client deleted. Both ends are included."""

    first: int
    last: int
    reason: Reason
    at_most: bool = False
    """Whether the range is an upper bound: perhaps only some of the seqs, or none, had an acked record."""


class Tombstone(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="$type",
    tag="tombstone",
    rename={"seq": "$seq"},
):
    """One gap in a topic. Reading resumes at `seq`."""

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
        """Return a sentence that describes the gap."""
        if self.reason is Reason.RECREATED:
            return (
                f"the cursor is above the head {self.head_seq}, or the topic was deleted and created again since;"
                f" reading starts at seq {self.earliest_seq}"
            )
        count = (
            f"up to {self.missed_estimate} records may be" if self.at_most else f"{self.missed_estimate} records are"
        )
        return f"{count} gone: seq {self.gap_from} to {self.gap_to}, {self.reason.value}"
