"""Whatever a server does, the directory it leaves has no finding; whatever breaks then is found and mended."""

import random

import pytest

from driftq.model.topic_config import Durability
from driftq.testing import SimDisk
from tests.unit.offline.life import Life, checked
from tests.unit.offline.repair.test_repair import damaged_copies, missing, picture, repaired, told

_CONFIGS: tuple[dict[str, object], ...] = ({}, {"cap_records": 12}, {"ttl_ms": 20_000}, {"cap_bytes": 100})


class Wanderer:
    """A server that does this and that, stops and is killed, and is looked at every time."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.life = self._begin(SimDisk(roots=("/data", "/cold")))
        for number in range(4):
            config = self.rng.choice(_CONFIGS)
            self.life.put(f"t{number}", self.rng.choice(list(Durability)), **config)

    def _begin(self, disk: SimDisk) -> Life:
        return Life(disk, hot_retain_segments=self.rng.choice([0, 1, 2, 9]))

    def step(self) -> None:
        """One thing."""
        rng, life, name = self.rng, self.life, f"t{self.rng.randrange(4)}"
        match rng.choices(range(8), (50, 10, 5, 7, 8, 7, 3, 10))[0]:
            case 0:
                count = rng.choice([1, 1, 2, 5, 300])
                life.write(name, *range(count), tags=[rng.choice(["a", "b", None]) for _ in range(count)])
            case 1:
                life.delete(name, match=rng.choice(["a", "b"]))
            case 2:
                life.delete(name, before_seq=rng.randrange(1, 60))
            case 3:
                life.delete(name, seqs=[rng.randrange(1, 60) for _ in range(5)])
            case 4:
                life.runtime.advance(rng.choice([100, 6000, 15_000]))
            case 5:
                life.checkpoint()
            case 6:
                life.run(life.engine.delete_topic(name))
                life.put(name, rng.choice(list(Durability)))
            case _:
                self.again(killed=rng.random() < 0.5)

    def again(self, *, killed: bool) -> None:
        """Another process, on what the last one left."""
        if killed:
            self.life.runtime.stop()
        else:
            self.life.close()
        disk = self.life.disk.fork()
        assert checked(disk).findings == []
        self.life = self._begin(disk)


@pytest.mark.parametrize("seed", range(12))
def test_no_life_leaves_a_finding_and_no_damage_behind_it_is_silent(seed: int) -> None:
    wanderer = Wanderer(seed)
    for _ in range(wanderer.rng.randrange(20, 60)):
        wanderer.step()
    wanderer.life.close()
    disk = wanderer.life.disk
    assert checked(disk).findings == []
    before = picture(disk)
    kind = ("data", "idx", "tags", "parquet", "del", "wal")[seed % 6]
    for what, broken in damaged_copies(disk, wanderer.rng, {kind}):
        assert checked(broken).wrong(), what
        repaired(broken)
        for topic_id, seqs in missing(before, picture(broken)).items():
            assert seqs <= told(broken, topic_id), (what, topic_id)
