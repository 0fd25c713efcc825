"""Crashes judged by notes: an image of the disk behind every call, with what was asked and answered by then.

    a history of calls → images → each crashed in some modes → recovered → judged → recovered again → judged and probed

What a feature promises is in its own notes, its judge and its probe; this is the rest. By default a sample of images
is tried, both ends of every run among them, and `CRASH=all` tries every image in every mode.
"""

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from driftq.config import Settings
from driftq.testing import CrashMode, ManualClock, SimDisk
from tests.crash.sweep import ALL, KILL, MODES, crash

SETTINGS = Settings(
    data_dir="/data",
    wal_file_bytes=8192,
    segment_max_events=8,
    checkpoint_wal_bytes=1 << 40,
    checkpoint_interval_ms=1 << 40,
)
SAMPLE = 60
"""Images of each run that are tried by default."""

N = TypeVar("N")
R = TypeVar("R")


@dataclass(frozen=True)
class Image(Generic[N]):
    """A disk behind one of its calls."""

    number: int
    call: str
    disk: SimDisk
    notes: N
    wall_ms: int


class Noting(Generic[N]):
    """A simulated disk, and the notes of people who write down what they were told."""

    def __init__(self, notes: N) -> None:
        self.notes = notes
        self.images: list[Image[N]] = []
        self.clock = ManualClock()
        self.disk = SimDisk(["/data", "/cold"], on_call=self._called)

    def _called(self, operation: str, path: str) -> None:
        notes = copy.deepcopy(self.notes)
        image = Image(len(self.images), f"{operation} {path}", self.disk.fork(), notes, self.clock.wall_ms())
        self.images.append(image)


class Promises(Protocol[N, R]):
    """What a feature has to keep."""

    def recovered(self, image: Image[N], disk: SimDisk, rng: random.Random) -> R:
        """The feature on a disk that a crash left."""
        ...

    def disk_of(self, rig: R) -> SimDisk:
        """The disk it works on."""
        ...

    def judge(self, image: Image[N], rig: R) -> None:
        """Hold the notes against what it shows."""
        ...

    def picture(self, rig: R) -> object:
        """Everything durable that it shows: recovered again it is the same."""
        ...

    def probe(self, image: Image[N], rig: R) -> None:
        """It goes on as if nothing had happened."""
        ...


def try_all(
    images: Sequence[Image[N]], promises: Promises[N, R], seed: int | None, *modes: CrashMode, least: int = 60
) -> None:
    """Crash images, recover them twice and judge; `modes` are tried beside a kill and one by lot."""
    assert len(images) > least, "this history is too short"
    rng = random.Random(seed)
    some = images if ALL else [images[0], images[-1], *rng.sample(images, min(len(images), SAMPLE))]
    for image in some:
        for mode in MODES if ALL else (KILL, *modes, rng.choice(list(CrashMode))):
            disk = crash(image.disk, mode, rng.getrandbits(16))
            try:
                _try(image, promises, disk, rng)
            except AssertionError as failure:
                raise AssertionError(f"image {image.number} ({image.call}), {mode}: {failure}") from failure


def _try(image: Image[N], promises: Promises[N, R], disk: SimDisk, rng: random.Random) -> None:
    rig = promises.recovered(image, disk, rng)
    promises.judge(image, rig)
    first = promises.picture(rig)
    again = promises.recovered(image, crash(promises.disk_of(rig), rng.choice(MODES), rng.getrandbits(16)), rng)
    assert promises.picture(again) == first, "recovered again, it is not the same"
    promises.judge(image, again)
    promises.probe(image, again)
