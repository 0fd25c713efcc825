"""The upkeep goes on behind a round that failed."""

import pytest

from driftq.engine.files.segment_files import SegmentFiles
from driftq.testing import EngineRig
from tests.unit.failing import BugError, fail_once


def test_a_round_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = EngineRig()
    rig.put("a", ttl_ms=10_000)
    rig.write("a", 1)
    rig.runtime.advance(1000)
    fail_once(monkeypatch, SegmentFiles, "flip")
    with pytest.raises(BugError):
        rig.runtime.advance(1000)
    rig.runtime.advance(12_000)
    assert rig.topic("a").earliest == 2
