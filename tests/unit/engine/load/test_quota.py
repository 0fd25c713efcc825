"""The cap on all bytes: exact, and blind to what has expired."""

import pytest
from msgspec.structs import replace

from driftq.errors import ThrottledError
from driftq.model.limits import Limits
from driftq.model.topic_config import Durability
from driftq.testing import SMALL, EngineRig


def capped(most: int) -> EngineRig:
    return EngineRig(replace(SMALL, limits=Limits(total_bytes_max=most)))


def test_expired_bytes_do_not_count_though_nobody_looked_at_their_topic() -> None:
    rig = capped(10)
    rig.put("aging", ttl_ms=100)
    rig.put("t")
    rig.write("aging", 12345678)
    rig.clock.advance(100)
    with pytest.raises(ThrottledError):
        rig.write("t", 123)
    rig.clock.advance(1)
    assert rig.write("t", 123).first_seq == 1


def test_a_refusal_does_not_hide_a_later_expiry() -> None:
    rig = capped(10)
    rig.put("slow", ttl_ms=500)
    rig.put("quick", ttl_ms=50)
    rig.put("t")
    rig.write("slow", 1234)
    rig.write("quick", 123456)
    for _ in range(3):
        with pytest.raises(ThrottledError):
            rig.write("t", 12)
    rig.clock.advance(51)
    rig.write("t", 123456)
    with pytest.raises(ThrottledError):
        rig.write("t", 1)
    rig.clock.advance(450)
    rig.write("t", 1)


def test_a_shorter_ttl_counts_at_once() -> None:
    rig = capped(10)
    rig.put("aging", ttl_ms=10_000)
    rig.put("t")
    rig.write("aging", 1234567890)
    with pytest.raises(ThrottledError):
        rig.write("t", 1)
    rig.clock.advance(20)
    rig.put("aging", ttl_ms=25)
    with pytest.raises(ThrottledError):
        rig.write("t", 1)
    rig.clock.advance(6)
    rig.write("t", 1)


def test_exactly_at_the_cap_is_allowed_and_reserved_bytes_count() -> None:
    rig = capped(10)
    rig.put("t")
    rig.engine.quota.reserved += 4
    with pytest.raises(ThrottledError):
        rig.write("t", 1234567)
    rig.write("t", 123456)
    rig.engine.quota.reserved -= 4
    rig.write("t", 1234)


def test_only_a_write_that_was_promised_a_sync_shows_one() -> None:
    """inv: 77"""
    rig = EngineRig()
    for durability in Durability:
        rig.put(durability, durability)
        # More than any reservation: the `disk` write has to wait for one.
        assert (rig.write(durability, *range(1000)).sync_ns > 0) == (durability is Durability.FSYNC)
