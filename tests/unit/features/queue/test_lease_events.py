"""Bodies of lease frames: what was once written must be read for ever."""

import pytest
from msgspec import ValidationError

from driftq.features.queue.lease_events import (
    Grant,
    LeaseEvent,
    LeaseKind,
    Release,
    TableState,
    decode_event,
    decode_state,
    encode,
)

EVENT = LeaseEvent(
    1_700_000_000_000,
    [Release(7, [1, 2]), Release(8, [3], 1_700_000_060_000)],
    [
        Grant((1 << 63) - 1, "worker", 1_700_000_030_000, [4, 300], [(4, 2)]),
        Grant(9, "w", 1_700_000_030_000, [5], extends=True),
    ],
)
EVENT_BYTES = bytes.fromhex(
    "93cf0000018bcfe568009293079201020093089103cf0000018bcfe652609296cf7fffffffffffffffa6776f726b6572cf00"
    "00018bcfe5dd309204cd012c91920402c29609a177cf0000018bcfe5dd30910590c3"
)
STATE = TableState(3, 1_700_000_000_000, 300, EVENT.grants[:1], [(3, 1_700_000_060_000)], [(4, 2), (9, 0)])
STATE_BYTES = bytes.fromhex(
    "9603cf0000018bcfe56800cd012c9196cf7fffffffffffffffa6776f726b6572cf0000018bcfe5dd309204cd012c91920402"
    "c2919203cf0000018bcfe6526092920402920900"
)


def test_the_bytes_of_an_event() -> None:
    assert encode(EVENT) == EVENT_BYTES
    assert decode_event(EVENT_BYTES) == EVENT


def test_the_bytes_of_a_table() -> None:
    assert encode(STATE) == STATE_BYTES
    assert decode_state(STATE_BYTES) == STATE


def test_fields_that_are_not_there_are_the_defaults_and_unknown_ones_are_refused() -> None:
    assert decode_event(b"\x91\x05") == LeaseEvent(5)
    assert decode_state(b"\x91\x05") == TableState(5)
    with pytest.raises(ValidationError):
        decode_event(b"\x94\x05\x90\x90\xc3")


def test_kinds_are_for_ever() -> None:
    assert {kind.name: kind.value for kind in LeaseKind} == {"LEASES": 32, "LEASE_STATE": 33}
