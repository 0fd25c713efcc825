"""What is logged of leases, and what a checkpoint holds of them: msgpack arrays, fields may be added at the end.

One frame of kind LEASES per call that changed anything: what was given back, what was given out. An extension is a
grant of the same number with another deadline. An ack is not in here: it is the delete of its jobs, and a lease ends
with its job. `docs/formats/leases.md` draws the bytes.
"""

from enum import IntEnum

from msgspec import Struct, msgpack


class LeaseKind(IntEnum):
    """Frame kinds of this package's range, 32 to 47."""

    LEASES = 32
    LEASE_STATE = 33


class Release(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Jobs of one claim that are nobody's again: at once, or from a moment on."""

    number: int
    seqs: list[int]
    until: int = 0


class Grant(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Jobs that somebody holds from now on. `counts` has the deliveries of those that are not the first."""

    number: int
    node: str
    deadline: int
    seqs: list[int]
    counts: list[tuple[int, int]] = []
    extends: bool = False
    """Is it another deadline for what is held under this number? Then it gives nobody what he no longer holds."""


class LeaseEvent(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind LEASES: one call. Releases come first."""

    clock: int
    releases: list[Release] = []
    grants: list[Grant] = []


class TableState(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind LEASE_STATE, and a table in a checkpoint. Of leases that are not logged only the counter is kept."""

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
    """To bytes."""
    return _encoder.encode(body)


def decode_event(body: bytes) -> LeaseEvent:
    """From bytes."""
    return _event.decode(body)


def decode_state(body: bytes) -> TableState:
    """From bytes."""
    return _state.decode(body)
