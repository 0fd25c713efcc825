"""Crashes of a log whose records of class `memory` are loaded when the server is ready, and of those starts."""

import random
import sys

import pytest

from driftq.engine.recovery import deferred_load
from driftq.storage.wal import memory_spans as spans
from tests.crash import scenarios
from tests.crash.sweep import Swept, recovering, run, run_and_sweep, sweep

pytestmark = pytest.mark.crash


@pytest.fixture(autouse=True, params=["spans", "frames"])
def put_off(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans of any length are named after every sync; or none is, and every frame is put off by itself."""
    monkeypatch.setattr(deferred_load, "EAGER_FRAMES", 0)
    monkeypatch.setattr(spans, "SPAN_BYTES_MIN", 1 if request.param == "spans" else sys.maxsize)
    monkeypatch.setattr(spans, "NAMED_BYTES", 1)


def test_a_crash_at_any_call_keeps_what_the_classes_promise() -> None:
    """proves: G-DUR-1, G-DUR-2, G-DUR-3, G-REC-1, G-REC-2, G-REC-4, G-REC-17, G-SEQ-1"""
    run_and_sweep("late", scenarios.late)


def test_a_crash_at_any_call_of_a_start_that_puts_records_off_changes_nothing() -> None:
    """proves: G-REC-3, G-REC-17"""
    swept = Swept()
    images = recovering(run(scenarios.late, seed=1).images, random.Random(1), 6)
    sweep(images, states=300, swept=swept)
    assert not swept.violations, swept.violations[:3]
