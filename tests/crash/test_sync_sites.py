"""Every sync is there for a reason: without it, some crash breaks a promise."""

import pytest

from driftq.system.disk import Site
from driftq.testing import CrashMode
from tests.crash import scenarios
from tests.crash.judge import Violation
from tests.crash.sweep import Scenario, run, sweep
from tests.crash.world import World

pytestmark = pytest.mark.crash

SHOWN_BY: dict[Site, Scenario] = {
    Site.LAYOUT_DIR: scenarios.append,
    Site.WAL_DIR: scenarios.rotate,
    Site.WAL_COMMIT: scenarios.append,
    Site.WAL_ROTATE: scenarios.append_large,
    Site.WAL_HEAD: scenarios.append_large,
    Site.WAL_REPLAYED: scenarios.shards,
    Site.SEGMENT_TOPIC_DIR: scenarios.seal,
    Site.SEGMENT_DIR: scenarios.seal,
    Site.SEGMENT_DATA: scenarios.seal,
    Site.SEGMENT_IDX: scenarios.reseal,
    Site.SEGMENT_FLAG: scenarios.flag_flip,
    Site.COLD_TOPIC_DIR: scenarios.relocate,
    Site.COLD_DIR: scenarios.relocate,
    Site.COLD_PARQUET: scenarios.relocate,
    Site.COLD_DEL: scenarios.relocate,
    Site.COLD_FLAG: scenarios.relocate,
    Site.SNAPSHOT_FILE: scenarios.checkpoint,
    Site.SNAPSHOT_DIR: scenarios.checkpoint,
}
"""A scenario in which some crash shows that the sync is missing; that none does with it, the sweeps show."""


SHOWN_ELSEWHERE = {
    Site.WAL_TIMER: "test_sync_sites.py::test_without_the_timer_sync_synced_seq_would_lie",
    Site.WAL_DRAIN: "test_drained.py::test_without_the_sync_before_it_a_drained_log_would_lie",
    Site.WAL_RESERVE: "test_full_disk.py::test_without_the_sync_of_the_log_reserve_a_power_loss_takes_it",
    Site.WAL_RESERVE_DIR: ("test_full_disk.py::test_without_the_sync_of_its_entry_a_power_loss_takes_the_log_reserve"),
    Site.SPACE_RESERVE: (
        "test_full_disk.py"
        "::test_without_the_sync_of_the_reserve_file_a_power_loss_takes_the_space_for_the_next_checkpoint"
    ),
    Site.SPACE_RESERVE_LENT: (
        "test_full_disk.py::test_without_the_syncs_of_a_lent_reserve_file_a_start_extends_a_checkpoint"
    ),
    Site.STAGE_FILE: "test_staging.py::test_without_its_sync_some_crash_loses_a_part",
    Site.STAGE_DIR: "test_staging.py::test_without_its_sync_some_crash_loses_a_part",
    Site.SERVER_ID: "test_server_id.py::test_without_its_sync_an_id_would_be_lost",
    Site.BACKUP_FILE: "test_backup.py::test_without_its_sync_it_would_not",
    Site.LOST_DIR: "test_lost_files.py::test_without_its_sync_a_file_would_be_lost",
    Site.LOST_RECORD: "test_accept_loss.py::test_without_its_sync_a_hole_would_have_no_record",
    Site.LOST_TOPIC_DIR: "test_lost_files.py::test_without_its_sync_a_file_would_be_lost",
}
"""The test that fails without the sync; `tests/tidy/test_guarantees.py` checks that it exists and names the site."""


def test_every_site_is_on_trial() -> None:
    assert {*SHOWN_BY, *SHOWN_ELSEWHERE} == {*Site}


@pytest.mark.parametrize("site", SHOWN_BY, ids=str)
def test_without_its_sync_some_crash_breaks_a_promise(site: Site) -> None:
    swept = sweep(run(SHOWN_BY[site], ignore=site).images, states=2000)
    assert swept.violations, f"{len(swept.states)} crashes, and nobody misses {site}"


def _told_to_be_synced(*, ignore: Site | None) -> World:
    world = World(ignore=ignore, order=False).start()
    for name in ("disk", "memory"):
        world.put(name, name)
    world.settle()
    for count in (1, 2):
        world.runtime.advance(20)
        for name in ("disk", "memory"):
            world.append(name, count)
        world.settle()
    assert [world.engine.synced_seq(world.engine.topic(name)) for name in ("disk", "memory")] == [1, 1]
    world.runtime.advance(10)
    for name in ("disk", "memory"):
        assert world.engine.synced_seq(world.engine.topic(name)) == 3
        world.look(name)
    return world


def test_synced_seq_reaches_the_head_by_itself_and_tells_the_truth() -> None:
    """proves: G-DUR-11, G-DUR-2"""
    world = _told_to_be_synced(ignore=None)
    world.crash(CrashMode.DROP)
    world.judge()
    assert len(world.read("memory").records) == 3


def test_without_the_timer_sync_synced_seq_would_lie() -> None:
    """proves: G-DUR-11"""
    world = _told_to_be_synced(ignore=Site.WAL_TIMER)
    ledger = world.ledger.copy()
    again = World(world.disk.crash(CrashMode.DROP, 0), ledger=ledger, order=False).start()
    with pytest.raises(Violation, match="was said to be synced"):
        again.judge()
