"""Copies that a start makes again, case by case; random histories of them are in `tests/property/test_routers`."""

from driftq.testing import ServerRig
from tests.unit.features.router.routed_rig import forwarded, put_router, put_topic


def test_copies_of_an_ephemeral_source_in_a_memory_dest_survive_a_kill() -> None:
    """proves: G-DUR-3; no record of dest is missing below one that is there."""
    rig = ServerRig(seed=1)
    put_topic(rig, "a", durability="ephemeral")
    put_topic(rig, "b", durability="memory")
    put_router(rig, "ab", "a", "b")
    rig.write("a", 1, 2)
    rig.diff("b")
    rig.write("b", 3)
    rig.kill()
    page = rig.diff("b")
    assert ([record["data"] for record in page["records"]], page["tombstone"]) == ([1, 2, 3], None)
    assert forwarded(rig, "ab") == 2


def test_records_of_an_ephemeral_source_that_no_router_took_leave_no_slots() -> None:
    """proves: G-COPY-4; a restart ends them in silence, whatever the caps of the source took of them before."""
    rig = ServerRig()
    put_topic(rig, "a", durability="ephemeral", cap_records=2)
    put_topic(rig, "b", durability="fsync")
    put_router(rig, "ab", "a", "b", filter="wanted")
    rig.write("a", *range(10))
    rig.advance(100)
    put_topic(rig, "a", durability="ephemeral", cap_records=3)
    rig.kill()
    rig.advance(100)
    page = rig.diff("b")
    assert (page["head_seq"], page["tombstone"]) == (0, None)
