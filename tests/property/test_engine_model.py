"""The engine against the oracle: whatever is done to it, by whom and in which order, readers see what the book says.

Two ways to the same `World`: a hypothesis state machine, whose failures shrink to a few calls, and long runs of a
seeded random walk, which get to states that take many steps.
"""

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from driftq.config import Settings
from driftq.testing import CrashMode
from tests.property.histories import HISTORIES, STEPS
from tests.property.world import KEYS, NAMES, WORKERS, World, some_config, some_match

names = st.sampled_from(NAMES)
spices = st.integers(0, 1 << 20)
shard_counts = st.sampled_from((1, 1, 2, 3))
write_sizes = st.one_of(st.integers(1, 5), st.integers(1, 40), st.sampled_from((1, 40, 300)))
keys = st.sampled_from((None, None, *KEYS))


def small_settings(rng: random.Random) -> Settings:
    """Files and segments so small that everything that can happen to them happens within a few writes."""
    return Settings(
        data_dir="/data",
        cold_dir=rng.choice(("/cold", None)),
        wal_shards=rng.choice((1, 1, 2, 3)),
        wal_file_bytes=rng.choice((8 << 10, 16 << 10)),
        segment_max_events=rng.choice((4, 8, 16, 300, 600)),
        hot_retain_segments=rng.choice((0, 1, 2)),
        cache_bytes=rng.choice((1, 4 << 10, 1 << 20)),
        checkpoint_wal_bytes=rng.choice((4 << 10, 64 << 20)),
        checkpoint_interval_ms=rng.choice((5000, 60_000)),
    )


def small_world(spice: int) -> World:
    """An engine of such settings. Threads take turns by a seed or in order; reads find the page cache warm or cold."""
    rng = random.Random(spice)
    return World(rng.choice((None, spice)), small_settings(rng), cached=rng.random() < 0.7)


class EngineModel(RuleBasedStateMachine):
    """One world; each rule is a call, and behind each everything readable of one topic or two is compared."""

    world: World

    @initialize(spice=spices)
    def start(self, spice: int) -> None:
        """An empty server."""
        self.world = small_world(spice)

    def _check(self, name: str, spice: int) -> None:
        self.world.check((name, NAMES[spice % len(NAMES)]), spice)

    @rule(name=names, size=st.integers(1, 6), spice=spices)
    def write(self, name: str, size: int, spice: int) -> None:
        """A small write."""
        self.world.write(name, (size,), spice)
        self._check(name, spice)

    @rule(name=names, size=st.sampled_from((9, 17, 40, 255, 256, 300)), spice=spices)
    def write_much(self, name: str, size: int, spice: int) -> None:
        """A write that fills segments, or is a block of its own."""
        self.world.write(name, (size,), spice)
        self._check(name, spice)

    @rule(sizes=st.tuples(*[st.integers(1, 12)] * len(NAMES)), spice=spices)
    def write_everywhere(self, sizes: tuple[int, ...], spice: int) -> None:
        """Something for every topic."""
        for name, size in zip(NAMES, sizes, strict=True):
            self.world.write(name, (size,), spice + size)
        self._check(NAMES[0], spice)

    @rule(name=names, several=st.lists(st.tuples(write_sizes, keys), min_size=1, max_size=4), spice=spices)
    def write_several(self, name: str, several: list[tuple[int, str | None]], spice: int) -> None:
        """Writes of one loop turn, some with the same key."""
        self.world.write(name, [size for size, _ in several], spice, keys=[key for _, key in several])
        self._check(name, spice)

    @rule(name=names, spice=spices)
    def delete(self, name: str, spice: int) -> None:
        """By seq, by tag, by prefix, or by two of them. Now and then the whole topic; the next write makes another."""
        topic = self.world.topics.get(name)
        if spice % 8 == 0:
            self.world.delete_topic(name)
        selectors = some_match(random.Random(spice), None if topic is None else topic.state)
        self.world.delete(name, selectors)
        self._check(name, spice)

    @rule(name=names, spice=spices)
    def put(self, name: str, spice: int) -> None:
        """Create, reclass, tighten, relax."""
        self.world.put(name, some_config(random.Random(spice)))
        self._check(name, spice)

    @rule()
    def checkpoint(self) -> None:
        """Take a checkpoint."""
        self.world.checkpoint()

    @rule(name=names, ms=st.sampled_from((1, 9, 11, 150, 300, 301, 1000, 2500, 2501, 6000)), spice=spices)
    def advance(self, name: str, ms: int, spice: int) -> None:
        """Let time pass: timers, ticks, TTL, windows. Now and then somebody sets the clock."""
        if spice % 8 == 0:
            self.world.set_wall((-5000, -300, 400)[spice % 3])
        self.world.advance(ms)
        self._check(name, spice)

    @precondition(lambda self: not self.world.held)
    @rule(workers=st.sets(st.sampled_from(WORKERS)))
    def hold(self, workers: set[str]) -> None:
        """From here on commits stay under way."""
        self.world.hold(*sorted(workers))

    @precondition(lambda self: self.world.held)
    @rule(name=names, spice=spices)
    def release(self, name: str, spice: int) -> None:
        """They are committed."""
        self.world.release()
        self._check(name, spice)

    @rule(shards=shard_counts, spice=spices)
    def restart(self, shards: int, spice: int) -> None:
        """Stop and start."""
        self.world.restart(shards)
        self.world.check(NAMES, spice)

    @rule(mode=st.sampled_from((*CrashMode, None)), shards=shard_counts, spice=spices)
    def crash(self, mode: CrashMode | None, shards: int, spice: int) -> None:
        """Lose power, or be killed, and start."""
        self.world.crash(mode, spice, shards)
        self.world.check(NAMES, spice)

    def teardown(self) -> None:
        """Whatever was done, it closes, and what is there comes back."""
        if hasattr(self, "world"):
            self.world.restart(1)
            self.world.check(NAMES, 0)


TestEngineModel = EngineModel.TestCase
TestEngineModel.settings = settings(
    max_examples=HISTORIES,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)


def walk(world: World, rng: random.Random) -> None:
    """One step of a random walk."""
    name, spice, dice = rng.choice(NAMES), rng.getrandbits(30), rng.random()
    topic = world.topics.get(name)
    if dice < 0.42:
        count = rng.choice((1, 1, 1, 2, 3))
        several = [rng.choice((1, 1, 2, 5, rng.randint(1, 40), rng.randint(1, 300))) for _ in range(count)]
        world.write(name, several, spice, keys=[rng.choice((None, None, None, *KEYS)) for _ in range(count)])
    elif dice < 0.54:
        world.delete(name, some_match(rng, None if topic is None else topic.state))
    elif dice < 0.66:
        world.put(name, some_config(rng))
    elif dice < 0.68:
        world.delete_topic(name)
    elif dice < 0.73:
        world.checkpoint()
    elif dice < 0.83:
        world.advance(rng.choice((1, 9, 11, 150, 300, 301, 1000, 1001, 2500, 6000)))
    elif dice < 0.84:
        world.set_wall(rng.choice((-5000, -300, 400)))
    elif dice < 0.89:
        if world.held:
            world.release()
        else:
            world.hold(*rng.choice(((), WORKERS, WORKERS[:1], WORKERS[1:])))
    elif dice < 0.93:
        world.restart(rng.choice((1, 1, 2, 3)))
    else:
        world.crash(rng.choice((*CrashMode, None)), spice, rng.choice((1, 1, 2, 3)))
    world.check((name, rng.choice(NAMES)), spice)


@pytest.mark.parametrize("seed", range(8))
def test_long_run(seed: int) -> None:
    """inv: 2, 4, 8, 9, 32"""
    rng = random.Random(seed)
    world = small_world(seed)
    for _ in range(700):
        walk(world, rng)
