"""Crashes while the WAL goes from file to file."""

import pytest

from tests.crash import scenarios
from tests.crash.sweep import run_and_sweep

pytestmark = pytest.mark.crash


def test_a_crash_at_any_call_of_a_rotation_loses_nothing_acked() -> None:
    """proves: G-DUR-1, G-DUR-2, G-REC-1, G-REC-2, G-REC-5, G-TOMB-2"""
    run_and_sweep("rotate", scenarios.rotate, seeds=(None, 1, 2, 3, 4, 5))
