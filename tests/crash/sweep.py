"""The crash sweep: every image of a run, times every way to lose power, recovered and judged.

A *state* is a disk behind one call of the run together with what a crash made of it; equal states count once. By
default a sample is tried, both ends of every run always in it; `CRASH=all` tries every image in every mode, with more
seeds.

For each state: recover → judge by the ledger → recover again over the result, once as it is and once behind another
crash, with other shard counts → the identical picture. And a second life: writes are acked, the power goes again, and
both lives are judged.
"""

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from driftq.seam.disk import Site
from driftq.testing import CrashMode, SimDisk
from tests.crash.judge import Violation
from tests.crash.reading import differences
from tests.crash.world import Image, World

ALL = os.environ.get("CRASH") == "all"
KILL = "kill"
"""Besides the crash modes: the process dies and the machine stays up."""
MODES = (*CrashMode, KILL)
_SEEDS = 6 if ALL else 3
_SHARDS = (1, 2, 3)

Scenario = Callable[[World], None]


@dataclass
class Swept:
    """What a sweep has seen."""

    images: int = 0
    states: set[tuple[str, str]] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)


def run(scenario: Scenario, *, seed: int | None = None, ignore: Site | None = None, order: bool = True) -> World:
    """One run of a scenario from an empty disk, an image behind every call."""
    world = World(seed=seed, ignore=ignore, order=order, keep_images=True)
    scenario(world)
    return world


def sweep(
    images: Sequence[Image], *, states: int, swept: Swept | None = None, violations_max: int = 1, seed: int = 0
) -> Swept:
    """Try so many states of a run, or all of them; stops at so many violations."""
    swept = swept if swept is not None else Swept()
    swept.images += len(images)
    rng = random.Random(seed)
    until = len(swept.states) + states
    ends = [(image, mode, 0) for image in (images[0], images[-1]) for mode in MODES]
    rest = [(image, mode, s) for image in images for mode in MODES for s in range(_seeds(mode))]
    rng.shuffle(rest)
    for image, mode, crash_seed in ends + rest:
        if not ALL and len(swept.states) >= until:
            break
        crashed = _crash(image.disk, mode, crash_seed)
        state = (image.disk.state_digest(), KILL if mode == KILL else crashed.state_digest())
        if state in swept.states:
            continue
        swept.states.add(state)
        try:
            _try_state(image, crashed, random.Random(f"{state}"))
        except Exception as failure:  # whatever a recovery raises is a broken promise
            swept.violations.append(f"image {image.number} ({image.call}), {mode} {crash_seed}: {failure!r}")
            if len(swept.violations) >= violations_max:
                break
    return swept


def _seeds(mode: str) -> int:
    return _SEEDS if mode in (CrashMode.TORN, CrashMode.REORDER) else 1


def _crash(disk: SimDisk, mode: str, seed: int) -> SimDisk:
    return disk.fork() if mode == KILL else disk.crash(CrashMode(mode), seed)


def _try_state(image: Image, crashed: SimDisk, rng: random.Random) -> None:
    world = _recovered(image, crashed, rng, image.ledger.copy())
    world.judge(limit=rng.choice((3, 256)))
    if rng.getrandbits(1):
        world.settle()
    first = world.picture()
    after = world.disk.fork()
    again = [("as it is", after.fork())]
    mode = rng.choice([*CrashMode])
    again.append((f"behind {mode}", after.crash(mode, rng.getrandbits(16))))
    for how, disk in again:
        second = _recovered(image, disk, rng, world.ledger.copy())
        found = differences(first, second.picture())
        if found:
            raise Violation(f"recovered again {how}, it is not the same: {found}")
    _second_life(image, world, rng)


def _second_life(image: Image, world: World, rng: random.Random) -> None:
    world.show()
    world.probe(rng)
    mode = rng.choice([*CrashMode])
    third = _recovered(image, world.disk.crash(mode, rng.getrandbits(16)), rng, world.ledger.copy())
    try:
        third.judge()
    except Violation as violation:
        raise Violation(f"behind a second life and {mode}: {violation}") from violation


def _recovered(image: Image, disk: SimDisk, rng: random.Random, ledger: "object") -> World:
    from tests.crash.ledger import Ledger

    assert isinstance(ledger, Ledger)
    world = World(
        disk,
        ledger=ledger,
        wall_ms=image.wall_ms,
        settings=image.settings,
        seed=rng.getrandbits(16) if rng.getrandbits(1) else None,
        order=not rng.getrandbits(2),
    )
    return world.start(wal_shards=rng.choice(_SHARDS))
