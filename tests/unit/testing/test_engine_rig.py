"""The builder that tests of an engine begin with."""

import pytest

from driftq.model.topic_config import Durability
from driftq.testing import EngineRig, rows_of


def test_values_are_encoded_and_bytes_are_taken_as_json() -> None:
    assert rows_of([1, "a", b"1e5", {"k": None}]).data.data == b'1"a"1e5{"k":null}'


def test_one_line_and_it_writes_reads_restarts_and_crashes() -> None:
    rig = EngineRig(wal_shards=2)
    rig.put("t")
    rig.write("t", {"v": 1}, tags=["a"], batch_node="n")
    expected = {"$seq": 1, "$ts": rig.clock.wall_ms(), "$tag": "a", "$node": "n", "data": {"v": 1}}
    assert rig.read("t") == [expected]
    rig.restart(wal_shards=1)
    assert rig.walk("t") == ([expected], [])
    rig.kill()
    rig.crash(wal_shards=3)
    assert rig.seqs("t") == [1]
    assert rig.settings.wal_shards == 3


def test_a_held_wal_keeps_commits_under_way() -> None:
    rig = EngineRig(wal_shards=2)
    rig.hold_wal()
    put = rig.put_nowait("t", Durability.EPHEMERAL)
    rig.runtime.run_until_idle()
    assert not put.settled
    rig.release_wal()
    assert put.result()


def test_a_broken_order_of_syncs_is_an_error_of_the_test() -> None:
    rig = EngineRig()
    rig.order.violations.append("something")
    with pytest.raises(AssertionError, match="something"):
        rig.put("t")
