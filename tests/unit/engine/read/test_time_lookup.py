"""From a time to a cursor: as a scan of every record would find it."""

import pytest

from driftq.model.topic_config import Durability
from driftq.system.runtime import run
from driftq.testing import EngineRig


def _spaced(rig: EngineRig, name: str, writes: int) -> list[dict[str, int]]:
    for number in range(writes):
        rig.write(name, *range(1 + number % 3))
        rig.clock.advance(7 * (number % 4))
    return rig.walk(name)[0]


def _seek(rig: EngineRig, name: str, ts: int) -> int:
    return rig.run(run(rig.engine.seek(name, ts)))


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.EPHEMERAL])
def test_every_time_leads_to_the_record_a_scan_finds(durability: Durability) -> None:
    rig = EngineRig(cache_bytes=1)
    rig.put("a", durability)
    found = _spaced(rig, "a", 60)
    for ts in sorted({record["$ts"] + off for record in found for off in (-1, 0, 1)} | {0, 1 << 50}):
        wanted = next((record["$seq"] - 1 for record in found if record["$ts"] >= ts), found[-1]["$seq"])
        assert _seek(rig, "a", ts) == wanted, ts


def test_what_retention_took_is_passed_over_without_a_tombstone() -> None:
    rig = EngineRig()
    rig.put("a", cap_records=3)
    kept = _spaced(rig, "a", 9)
    for ts in (0, kept[0]["$ts"]):
        cursor = _seek(rig, "a", ts)
        assert cursor == kept[0]["$seq"] - 1
        assert rig.page("a", cursor).tombstone is None


def test_a_topic_without_records_is_at_its_head() -> None:
    rig = EngineRig()
    rig.put("a")
    assert _seek(rig, "a", 0) == 0
    rig.write("a", 1, 2)
    rig.delete("a", before_seq=3)
    assert _seek(rig, "a", 0) == 2


def test_a_block_that_left_memory_is_fetched() -> None:
    rig = EngineRig(cache_bytes=1)
    rig.put("a")
    found = _spaced(rig, "a", 60)
    rig.restart()
    assert _seek(rig, "a", found[5]["$ts"]) == next(r["$seq"] for r in found if r["$ts"] >= found[5]["$ts"]) - 1
