"""The bytes of lease events in the log and in checkpoints: msgpack arrays; fields may be added at the end.

Each call that changed a lease logs one frame of kind LEASES, with the jobs that were given back and the jobs that were
handed out. An extension is a grant with the same number and another deadline. Acks are not logged here: an ack deletes
its jobs, and a lease ends with its job. `docs/formats/leases.md` draws the bytes.
"""

from enum import IntEnum

from msgspec import Struct, msgpack


class LeaseKind(IntEnum):
    """Frame kinds of this package, out of the range 32 to 47."""

    LEASES = 32
    LEASE_STATE = 33


class Release(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Jobs of one claim that become claimable again: at once, or at the time `until`."""

    number: int
    seqs: list[int]
    until: int = 0


class Grant(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Jobs that a node holds from now on. `counts` has the number of deliveries of jobs that were delivered before."""

    number: int
    node: str
    deadline: int
    seqs: list[int]
    counts: list[tuple[int, int]] = []
    extends: bool = False
    """Whether this sets a new deadline for jobs held under this number; other jobs are ignored."""


class LeaseEvent(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind LEASES: the changes of one call. Releases are applied before grants."""

    clock: int
    releases: list[Release] = []
    grants: list[Grant] = []


class TableState(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind LEASE_STATE, and a table in a checkpoint. For leases that are not logged, only `dead_lettered` is kept."""

    dead_lettered: int
    clock: int = 0
    frontier: int = 0
    grants: list[Grant] = []
    delayed: list[tuple[int, int]] = []
    counts: list[tuple[int, int]] = []


_encoder = msgpack.Encoder()
_event = msgpack.Decoder(LeaseEvent)
_state = msgpack.Decoder(TableState)


def encode(body: LeaseEvent | TableState) -> bytes:
    """Return an event or a state as msgpack bytes."""
    return _encoder.encode(body)


def decode_event(body: bytes) -> LeaseEvent:
    """Return the event that these bytes encode."""
    return _event.decode(body)


def decode_state(body: bytes) -> TableState:
    """Return the table state that these bytes encode."""
    return _state.decode(body)
