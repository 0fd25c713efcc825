"""A message of the broker API as it is stored and delivered (http-v1 §4): its text and its envelope.

Empty and zero members are left out, both on the wire and in the log. `partition_override` 0 is not left out.
"""

from msgspec import Struct


class RetryPolicy(Struct, frozen=True, omit_defaults=True):
    """How often and how soon a failed message is tried again; 0 means no limit, no delay, no cap."""

    max_attempts: int = 0
    backoff_ms: int = 0
    max_backoff_ms: int = 0


class DlqNote(Struct, frozen=True):
    """The origin of a dead letter. Every member is always present."""

    original_topic: str
    original_partition: int
    original_offset: int
    attempts: int
    last_error: str
    routed_at_ms: int
    group: str


class Routing(Struct, frozen=True, omit_defaults=True):
    """The label and metadata that the router hook gave to a message."""

    label: str = ""
    meta: dict[str, str] = {}


class Envelope(Struct, frozen=True, omit_defaults=True):
    """The optional fields of a message, next to its key and value."""

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
    """For a dead letter: the policy it had before. Stored, never delivered."""


class Message(Struct, frozen=True, omit_defaults=True):
    """One message. As JSON it is the `data` of its record."""

    value: str
    key: str = ""
    envelope: Envelope | None = None
    routing: Routing | None = None

    @property
    def size(self) -> int:
        """Return the bytes that count for backpressure: key and value."""
        return len(self.key.encode()) + len(self.value.encode())


class RoutingDecision(Struct, frozen=True):
    """The answer of a router hook. An empty member keeps the producer's value."""

    label: str = ""
    target_topic: str = ""
    partition_override: int | None = None
    meta: dict[str, str] = {}
