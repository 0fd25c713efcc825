"""Crashes of runs that nobody thought of: a seeded random walk over every operation, restarts of every kind in it."""

import random

import pytest

from driftq.model.topic_config import Durability
from driftq.testing import CrashMode
from tests.crash.sweep import ALL, run, sweep
from tests.crash.world import World

pytestmark = pytest.mark.crash

_SEEDS = 60 if ALL else 6
_STEPS = 40
_STATES = 60
_NAMES = ("a", "b", "c")
_TAGS = ("a", "b", None)


class Walk:
    """One random client and operator."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._keys = 0

    def run(self) -> None:
        """From an empty directory."""
        rng = self._rng
        self._world.start(
            wal_shards=rng.choice((1, 1, 2)),
            wal_file_bytes=rng.choice((2048, 8192)),
            segment_max_events=rng.choice((4, 6, 300)),
            cold_dir=rng.choice(("/cold", None)),
            hot_retain_segments=rng.choice((0, 1)),
            cache_bytes=rng.choice((1, 1 << 20)),
        )
        for name in _NAMES:
            self._configure(name)
        steps = [self._append] * 8 + [self._delete] * 3 + [self._pass_time] * 4 + [self._checkpoint] * 2
        steps += [self._configure_one, self._recreate, self._restart]
        for _ in range(_STEPS):
            rng.choice(steps)()
        self._world.advance(20)

    def _configure(self, name: str) -> None:
        rng = self._rng
        limits = rng.choice(({}, {}, {"cap_records": 7}, {"cap_bytes": 90}, {"ttl_ms": 3000}))
        self._world.put(name, rng.choice(tuple(Durability)), **limits)
        self._world.settle()

    def _configure_one(self) -> None:
        self._configure(self._rng.choice(_NAMES))

    def _recreate(self) -> None:
        name = self._rng.choice(_NAMES)
        self._world.drop(name)
        self._world.settle()
        self._configure(name)

    def _append(self) -> None:
        rng = self._rng
        self._keys += 1
        self._world.append(
            rng.choice(_NAMES),
            rng.choice((1, 2, 3, 5, 260)) if rng.random() < 0.2 else rng.randint(1, 4),
            tags=rng.choice((None, _TAGS)),
            key=rng.choice((None, f"k{self._keys}")),
            padding=rng.choice((0, 0, 200)),
        )

    def _delete(self) -> None:
        rng = self._rng
        name = rng.choice(_NAMES)
        head = self._world.engine.topic(name).head
        match rng.randrange(4):
            case 0:
                self._world.delete(name, before=rng.randint(1, head + 1))
            case 1:
                self._world.delete(name, tag="a")
            case 2:
                self._world.delete(name, prefix="b", before=rng.randint(1, head + 1))
            case _:
                self._world.delete(name, seqs=[rng.randint(1, head + 1) for _ in range(3)])

    def _pass_time(self) -> None:
        match self._rng.randrange(4):
            case 0:
                self._world.runtime.turn()
            case 1:
                self._world.settle()
            case 2:
                self._world.advance(20)
            case _:
                self._world.advance(self._rng.choice((1100, 5100)))

    def _checkpoint(self) -> None:
        if self._rng.getrandbits(1):
            self._world.checkpoint()
        else:
            self._world.engine.checkpointer.run()

    def _restart(self) -> None:
        rng, world = self._rng, self._world
        shards = rng.choice((1, 2, 3))
        match rng.randrange(3):
            case 0:
                world.kill(wal_shards=shards)
            case 1:
                world.crash(rng.choice(tuple(CrashMode)), rng.getrandbits(16), wal_shards=shards)
            case _:
                world.settle()
                world.close(wal_shards=shards)


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_a_crash_at_any_call_of_a_random_run_keeps_every_promise(seed: int) -> None:
    """proves: G-REC-1, G-REC-2, G-DUR-1, G-SEQ-2, G-TOMB-5, G-DEL-1"""
    images = run(lambda world: Walk(world, random.Random(seed)).run(), seed=seed if seed % 2 else None).images
    swept = sweep(images, states=_STATES, seed=seed)
    assert not swept.violations, swept.violations[0]
