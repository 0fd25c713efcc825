"""Copies over crashes: random histories of writes, deletes, configs and routers, and what is there afterwards."""

import pytest

from tests.property.routed import Routed

FOUND = (
    pytest.param(47, id="47-a-mark-waits-for-a-router-whose-frame-waits"),
    pytest.param(114, id="114-records-of-an-ephemeral-source-end-in-silence"),
    pytest.param(195, id="195-copies-that-a-crash-took-are-no-loss-of-the-next-source"),
)
"""Seeds of the second test that failed once, and what they found."""


@pytest.mark.parametrize("seed", range(30))
def test_copies_are_the_same_after_any_crash(seed: int) -> None:
    """proves: G-COPY-1; inv: 46, 47, 51, 53; whatever was written to a dest and deleted from it."""
    world = Routed(seed, shards=1 + seed % 3)
    for _ in range(3):
        for _ in range(world.rng.randrange(5, 40)):
            world.step()
        world.settle()
        before = world.picture()
        world.lose()
        assert world.picture() == before


@pytest.mark.parametrize("seed", [*range(30), *FOUND])
def test_an_fsync_dest_is_the_same_whatever_its_source_promises(seed: int) -> None:
    """inv: 46, 53; copies from sources of every class, of which a crash takes what they do not promise."""
    world = Routed(seed, classes=("fsync", "fsync", "disk", "memory", "ephemeral"), shards=1 + seed % 2)
    kept = [topic for topic, durability in world.classes.items() if durability == "fsync"]
    for _ in range(3):
        for _ in range(world.rng.randrange(5, 40)):
            world.step()
        world.settle()
        before = world.picture()
        world.lose()
        after = world.picture()
        assert [after[topic] for topic in kept] == [before[topic] for topic in kept]
        assert after.keys() == before.keys()
