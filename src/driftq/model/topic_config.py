"""The config of a topic (http-v0 §5). The complete object is stored, logged and returned, with all defaults applied."""

from enum import StrEnum
from typing import Literal

from msgspec import UNSET, Struct, UnsetType, structs

from driftq.errors import InvalidRequestError
from driftq.model import limits
from driftq.model.names import is_stored_name


class Durability(StrEnum):
    """What an ack of a write waits for (http-v0 §4.6)."""

    EPHEMERAL = "ephemeral"
    MEMORY = "memory"
    DISK = "disk"
    FSYNC = "fsync"


class Discard(StrEnum):
    """What a full topic does with a write: drop the oldest records, or refuse it."""

    OLD = "old"
    REJECT = "reject"


TopicType = Literal["log", "queue"]


class TopicConfig(Struct, frozen=True, kw_only=True):
    """All seventeen fields of a topic's config. `resolved` returns the form that is stored."""

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
        """Return the durability class: `durability` if it is set, else the one that `durable` selects."""
        if self.durability is not None:
            return self.durability
        return Durability.FSYNC if self.durable else Durability.DISK

    def resolved(self, topic: str) -> "TopicConfig":
        """Return the config to store: `durability` set, `durable` true only for fsync, lease and jitter within limits.

        Raise InvalidRequestError if `dead_letter` is not a valid topic name, or is the queue itself.
        """
        if self.dead_letter is not None and not (
            is_stored_name(self.dead_letter) and not (self.type == "queue" and self.dead_letter == topic)
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


class TopicPatch(Struct, frozen=True, kw_only=True):
    """Changes of a config (http-v0 §6.5): an absent field keeps its value, a null field returns to its default."""

    type: TopicType | UnsetType | None = UNSET
    ttl_ms: int | UnsetType | None = UNSET
    cap_records: int | UnsetType | None = UNSET
    cap_bytes: int | UnsetType | None = UNSET
    discard: Discard | UnsetType | None = UNSET
    durable: bool | UnsetType | None = UNSET
    durability: Durability | UnsetType | None = UNSET
    priority: int | UnsetType | None = UNSET
    auto_priority: bool | UnsetType | None = UNSET
    auto_create: bool | UnsetType | None = UNSET
    idempotency_window_ms: int | UnsetType | None = UNSET
    dedupe_node: bool | UnsetType | None = UNSET
    lease_ms: int | UnsetType | None = UNSET
    claim_jitter_ms: int | UnsetType | None = UNSET
    max_deliveries: int | UnsetType | None = UNSET
    dead_letter: str | UnsetType | None = UNSET
    leases_durable: bool | UnsetType | None = UNSET

    def over(self, config: TopicConfig) -> TopicConfig:
        """Return the config with these changes. It is not resolved."""
        changes = {
            field: getattr(_DEFAULTS, field) if value is None else value
            for field, value in structs.asdict(self).items()
            if value is not UNSET
        }
        if "durable" in changes or "durability" in changes:
            # The class has two fields. The stored value of the one that is not given must not override the other.
            changes = {"durable": False, "durability": None, **changes}
        return structs.replace(config, **changes)


_DEFAULTS = TopicConfig()
