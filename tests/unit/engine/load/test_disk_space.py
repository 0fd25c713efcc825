"""Whether records are refused for lack of space."""

import errno

import pytest

from driftq.engine.load.disk_space import DiskSpace
from driftq.errors import DiskFullError
from driftq.testing import EngineRig


def test_records_are_taken_as_soon_as_a_log_has_room_although_it_has_not_said_so() -> None:
    """proves: G-IO-13; what a log settles before it calls back may be a change that makes routers copy."""
    rig = EngineRig()
    shard, space = rig.engine.change_log.shards.all[0], rig.engine.change_log.space
    assert shard.on_room is not None
    shard.full = DiskFullError("the next log file cannot be made")
    shard.on_room()
    with pytest.raises(DiskFullError):
        space.check()
    shard.full = None
    space.check()
    assert space.refusal is None


def test_files_without_room_refuse_records_until_they_are_written() -> None:
    """proves: G-IO-13"""
    space = DiskSpace()
    space.note("a segment", OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(DiskFullError, match="segments and checkpoints"):
        space.check()
    space.note("a segment", None)
    space.check()
    assert not space.short
