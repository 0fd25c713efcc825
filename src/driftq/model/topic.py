"""The config of a topic (http-v0 §5), resolved: what is stored, logged and echoed is always the whole object."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct, structs

from driftq.errors import InvalidRequestError
from driftq.model import limits
from driftq.model.names import is_topic_name


class Durability(StrEnum):
    """What an ack of a write waits for (http-v0 §4.6)."""

    EPHEMERAL = "ephemeral"
    MEMORY = "memory"
    DISK = "disk"
    FSYNC = "fsync"


class Discard(StrEnum):
    """What a full topic does with a write."""

    OLD = "old"
    REJECT = "reject"


TopicType = Literal["log", "queue"]


class TopicConfig(Struct, frozen=True, kw_only=True):
    """All seventeen fields. `resolved` makes one out of what a caller gave."""

    type: TopicType = "log"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: Discard = Discard.OLD
    durable: bool = False
    durability: Durability | None = None
    priority: int | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = limits.IDEMPOTENCY_WINDOW_MS
    dedupe_node: bool = True
    lease_ms: int = limits.LEASE_MS
    claim_jitter_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str | None = None
    leases_durable: bool = False

    @property
    def resolved_durability(self) -> Durability:
        """The class: an explicit one wins, else `durable` picks."""
        if self.durability is not None:
            return self.durability
        return Durability.FSYNC if self.durable else Durability.DISK

    def resolved(self, topic: str) -> "TopicConfig":
        """The same with every default and clamp applied, or an error that says which field is wrong."""
        if self.dead_letter is not None and not (
            is_topic_name(self.dead_letter) and not (self.type == "queue" and self.dead_letter == topic)
        ):
            raise InvalidRequestError(
                "dead_letter must be a valid topic name, and not the queue's own",
                detail={"dead_letter": self.dead_letter},
            )
        durability = self.resolved_durability
        return structs.replace(
            self,
            durability=durability,
            durable=durability is Durability.FSYNC,
            lease_ms=min(max(self.lease_ms, limits.LEASE_MS_MIN), limits.LEASE_MS_MAX),
            claim_jitter_ms=min(self.claim_jitter_ms, limits.CLAIM_JITTER_MS_MAX),
        )
