"""A message of the broker API as it is stored and handed out (http-v1 §4): text, and what the producer says about it.

Empty and zero members are absent on the wire, and so are they in the log. `partition_override` 0 is not absent.
"""

from msgspec import Struct


class RetryPolicy(Struct, frozen=True, omit_defaults=True):
    """How often and how soon a message that failed is tried again; 0 is no limit, no delay, no cap."""

    max_attempts: int = 0
    backoff_ms: int = 0
    max_backoff_ms: int = 0


class DlqNote(Struct, frozen=True):
    """Where a dead letter comes from; every member is always there."""

    original_topic: str
    original_partition: int
    original_offset: int
    attempts: int
    last_error: str
    routed_at_ms: int
    group: str


class Routing(Struct, frozen=True, omit_defaults=True):
    """What the router hook says about a message."""

    label: str = ""
    meta: dict[str, str] = {}


class Envelope(Struct, frozen=True, omit_defaults=True):
    """What comes with a message beside its text."""

    run_id: str = ""
    step_id: str = ""
    parent_step_id: str = ""
    labels: dict[str, str] = {}
    target_topic: str = ""
    partition_override: int | None = None
    idempotency_key: str = ""
    tenant_id: str = ""
    deadline: str = ""
    """As the producer wrote it."""
    retry_policy: RetryPolicy | None = None
    dlq: DlqNote | None = None
    redrive_policy: RetryPolicy | None = None
    """Of a dead letter, the policy it had before: stored, and never handed out."""


class Message(Struct, frozen=True, omit_defaults=True):
    """One message. As JSON it is the `data` of its record."""

    value: str
    key: str = ""
    envelope: Envelope | None = None
    routing: Routing | None = None

    @property
    def size(self) -> int:
        """Bytes that count for backpressure."""
        return len(self.key.encode()) + len(self.value.encode())


class RoutingDecision(Struct, frozen=True):
    """What a router hook answers; an empty member leaves it to the producer."""

    label: str = ""
    target_topic: str = ""
    partition_override: int | None = None
    meta: dict[str, str] = {}
