"""Which segment files go when their records are deleted."""

import pytest

from driftq.storage.layout import Layout
from driftq.testing import EngineRig

_PAYLOAD = b'"' + b"x" * 898 + b'"'


def _filled(records: int) -> EngineRig:
    rig = EngineRig(segment_max_events=10_000, wal_file_bytes=8 << 20)
    rig.put("t")
    for _ in range(records // 100):
        rig.write("t", *[_PAYLOAD] * 100)
    rig.checkpoint()
    assert _file_bytes(rig) > 0
    return rig


def _file_bytes(rig: EngineRig) -> int:
    directory = Layout(rig.disk, "/data").topic_dir(rig.topic("t").id, cold=False)
    return sum(rig.disk.open(f"{directory}/{name}").size() for name in rig.disk.names(directory))


def _settle(rig: EngineRig) -> None:
    rig.runtime.advance(20_000)


def test_an_active_segment_without_live_records_is_removed() -> None:
    """proves: G-IO-13"""
    rig = _filled(5000)
    rig.delete("t", before_seq=rig.topic("t").head + 1)
    _settle(rig)
    assert _file_bytes(rig) == 0
    rig.write("t", 1, 2)
    assert rig.seqs("t") == [5001, 5002]
    rig.crash()
    assert rig.seqs("t") == [5001, 5002]


def test_a_small_one_is_kept_unless_space_is_short() -> None:
    rig = _filled(1000)
    rig.write("t", *[_PAYLOAD] * 100)
    rig.delete("t", before_seq=rig.topic("t").head + 1)
    _settle(rig)
    kept = _file_bytes(rig)
    rig.engine.segment_files.space.note("test", OSError(28, "full"))
    _settle(rig)
    assert kept > _file_bytes(rig) == 0


@pytest.mark.parametrize("left", [1, 1500])
def test_a_cap_frees_most_of_an_active_segment_while_space_is_short(left: int) -> None:
    """proves: G-IO-13"""
    rig = _filled(6900)
    before = _file_bytes(rig)
    rig.engine.segment_files.space.note("test", OSError(28, "full"))
    rig.put("t", cap_records=left)
    _settle(rig)
    assert rig.topic("t").count == left
    assert _file_bytes(rig) <= before // 3
    live = list(range(6901 - left, 6901))
    assert rig.seqs("t") == live
    rig.crash()
    assert rig.seqs("t") == live


def test_an_active_segment_with_live_records_at_its_start_is_left_as_it_is() -> None:
    rig = _filled(5000)
    rig.engine.segment_files.space.note("test", OSError(28, "full"))
    rig.run(rig.engine.delete_records("t", seqs=list(range(2, 5001))))
    _settle(rig)
    assert rig.seqs("t") == [1]
