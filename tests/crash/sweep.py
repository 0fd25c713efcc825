"""The crash sweep: every image of a run, times every way to lose power, recovered and judged.

A *state* is a disk behind one call of the run together with what a crash made of it; equal states count once. By
default a sample is tried, both ends of every run always in it; `CRASH=all` tries every image in every mode, with more
seeds.

For each state: recover → judge by the ledger → recover again over the result, as it is or behind another crash, with
another shard count → the identical picture. And, for all kills and half of the rest, a second life: writes are acked,
the power goes again, and both lives are judged.
"""

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from driftq.system.disk import Site
from driftq.testing import CrashMode, SimDisk
from tests.crash.judge import Violation
from tests.crash.ledger import Ledger
from tests.crash.reading import differences
from tests.crash.world import Image, World

ALL = os.environ.get("CRASH") == "all"
KILL = "kill"
"""Besides the crash modes: the process dies and the machine stays up."""
MODES = (*CrashMode, KILL)
_SEEDS = 6 if ALL else 3
_SHARDS = (1, 2, 3)

Scenario = Callable[[World], None]

SHARES = {
    "append": 650,
    "append_large": 450,
    "late": 500,
    "rotate": 450,
    "seal": 850,
    "reseal": 350,
    "flag_flip": 850,
    "checkpoint": 900,
    "graceful": 700,
    "relocate": 900,
    "delete_topic": 900,
    "class_change": 850,
    "mixed_classes": 500,
    "retention": 850,
    "shards": 600,
    "restarts": 400,
    "recover": 800,
}
"""How many distinct states the sweep of each scenario has to try, so that the tests can run in any process."""


@dataclass
class Swept:
    """What a sweep has seen."""

    images: int = 0
    states: set[tuple[str, str]] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)


def run(scenario: Scenario, *, seed: int | None = None, ignore: Site | None = None) -> World:
    """One run of a scenario from an empty disk, an image behind every call."""
    world = World(seed=seed, ignore=ignore, keep_images=True)
    scenario(world)
    return world


def run_and_sweep(name: str, scenario: Scenario, seeds: Sequence[int | None] = (None, 1, 2)) -> None:
    """Run a scenario, with threads interleaved in several ways, and sweep its share of states over the runs."""
    swept = Swept()
    for left, seed in zip(range(len(seeds), 0, -1), seeds, strict=True):
        images = run(scenario, seed=seed).images
        sweep(images, states=-(-(SHARES[name] - len(swept.states)) // left), swept=swept, seed=seed or 0)
    require_clean(name, swept)


def require_clean(name: str, swept: Swept) -> None:
    """No promise was broken, in as many states as this scenario has to try."""
    assert not swept.violations, "\n".join(swept.violations)
    assert len(swept.states) >= SHARES[name], f"{name} has {len(swept.states)} states in {swept.images} images"


def sweep(
    images: Sequence[Image], *, states: int, swept: Swept | None = None, violations_max: int = 1, seed: int = 0
) -> Swept:
    """Try so many states of a run, or all of them; stops at so many violations."""
    swept = swept if swept is not None else Swept()
    swept.images += len(images)
    rng = random.Random(seed)
    until = len(swept.states) + states
    ends = [(image, mode, 0) for image in (images[0], images[-1]) for mode in MODES]
    rest = [(image, mode, number) for image in images for mode in MODES for number in range(_seeds(mode))]
    rng.shuffle(rest)
    for image, mode, crash_seed in ends + rest:
        if not ALL and len(swept.states) >= until:
            break
        crashed = crash(image.disk, mode, crash_seed)
        state = (image.disk.state_digest(), KILL if mode == KILL else crashed.state_digest())
        if state in swept.states:
            continue
        swept.states.add(state)
        try:
            _try_state(image, crashed, random.Random(f"{state}"), killed=mode == KILL)
        except Exception as failure:  # noqa: BLE001 - whatever a recovery raises is a broken promise
            swept.violations.append(f"image {image.number} ({image.call}), {mode} {crash_seed}: {failure!r}")
            if len(swept.violations) >= violations_max:
                break
    return swept


def crash(disk: SimDisk, mode: str, seed: int) -> SimDisk:
    """What the next process finds."""
    return disk.fork() if mode == KILL else disk.crash(CrashMode(mode), seed)


def _seeds(mode: str) -> int:
    return _SEEDS if mode in (CrashMode.TORN, CrashMode.REORDER) else 1


def _try_state(image: Image, crashed: SimDisk, rng: random.Random, *, killed: bool) -> None:
    world = _recovered(image, crashed, rng, image.ledger.copy())
    world.judge(limit=rng.choice((3, 256)))
    if rng.getrandbits(1):
        world.settle()
    first = world.picture()
    after = world.disk.fork()
    mode = rng.choice(MODES)
    again = _recovered(image, crash(after, mode, rng.getrandbits(16)), rng, world.ledger.copy())
    found = differences(first, again.picture())
    if found:
        raise Violation(f"recovered again behind {mode}, it is not the same: {found}")
    if killed or rng.getrandbits(1):
        _second_life(image, world, rng)


def _second_life(image: Image, world: World, rng: random.Random) -> None:
    world.show()
    world.probe(rng)
    mode = rng.choice(MODES)
    third = _recovered(image, crash(world.disk, mode, rng.getrandbits(16)), rng, world.ledger.copy())
    try:
        third.judge()
    except Violation as violation:
        raise Violation(f"behind a second life and {mode}: {violation}") from violation


def _recovered(image: Image, disk: SimDisk, rng: random.Random, ledger: Ledger) -> World:
    world = World(
        disk,
        ledger=ledger,
        wall_ms=image.wall_ms,
        settings=image.settings,
        seed=rng.getrandbits(16) if rng.getrandbits(1) else None,
        order=not rng.getrandbits(2),
    )
    return world.start(wal_shards=rng.choice(_SHARDS))


def recovering(images: Sequence[Image], rng: random.Random, runs: int) -> list[Image]:
    """Images behind every call of recoveries: crashes of a run are recovered, shown to readers, and go on."""
    found: list[Image] = []
    for _ in range(runs):
        image = rng.choice(images)
        disk = crash(image.disk, rng.choice(MODES), rng.getrandbits(16))
        world = World(
            disk,
            ledger=image.ledger.copy(),
            wall_ms=image.wall_ms,
            settings=image.settings,
            seed=rng.getrandbits(16),
            keep_images=True,
        )
        world.start(wal_shards=rng.choice(_SHARDS))
        world.show()
        world.settle()
        found += world.images
    return found
