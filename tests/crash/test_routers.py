"""A crash behind every disk call of a run with routers, sampled: copies, and what was done to them, are as before."""

import os
from collections.abc import Callable

import pytest

from tests.crash.routed import Run, sweep

pytestmark = pytest.mark.crash

STATES = 2000 if os.environ.get("CRASH") == "all" else 60


def chained(run: Run) -> None:
    """A chain with direct writes, deletes, a capped source, twins, a checkpoint, and a router that ends."""
    run.topic("a", "b", "c")
    run.router("ab", "a", "b", guarantee="exactly_once")
    run.router("bc", "b", "c", filter="t")
    run.write("a", 1, 2, 3)
    run.write("b", "direct")
    run.write("a", 4, tag="u")
    run.delete("b", before_seq=3)
    run.topic("a", cap_records=2)
    run.write("a", *range(5, 10))
    run.delete("c", match="t")
    run.checkpoint()
    run.router("ab2", "a", "b")
    run.write("a", 10, 11)
    run.delete("b", match="u")
    run.write("c", "direct")
    run.write("a", 12)
    run.end("ab")
    run.write("a", 13, 14)
    run.write("b", "last")


def held_back(run: Run) -> None:
    """A full dest, a source that loses and deletes what waits for it, and room again."""
    run.topic("a")
    run.topic("b", cap_records=2, discard="reject")
    run.router("ab", "a", "b")
    run.write("a", 1, 2, 3, 4)
    run.write("a", 5, tag="u")
    run.delete("a", match="u")
    run.topic("a", cap_records=1)
    run.delete("b", before_seq=2)
    run.topic("b")
    run.write("a", 6)
    run.checkpoint()
    run.write("b", "direct")
    run.write("a", 7)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("durability", ["fsync", "disk"])
@pytest.mark.parametrize("scenario", [chained, held_back])
def test_copies_survive_a_crash_behind_any_disk_call(
    scenario: Callable[[Run], None], durability: str, shards: int
) -> None:
    """proves: G-COPY-1, G-COPY-2, G-COPY-3; inv: 46, 52, 53; copies keep their seqs, what was deleted stays gone."""
    run = Run(shards, durability=durability, shards=shards)
    scenario(run)
    sweep(run, STATES, seed=shards)
