"""The allocator, which does what it is asked for or leaves it alone, and the collector."""

import ctypes
import gc

import pytest

from driftq.system.machine import collect_seldom, give_freed_memory_back, keep_for_good, keep_freed_memory, zeros


def test_another_c_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: object) -> object:
        return object()

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert not keep_freed_memory()
    assert not give_freed_memory_back()


def test_giving_back_what_is_not_there_is_no_error() -> None:
    give_freed_memory_back()
    assert give_freed_memory_back() in (True, False)


def test_the_collector_comes_seldom_and_passes_over_what_was_there_before() -> None:
    thresholds = gc.get_threshold()
    try:
        collect_seldom()
        assert gc.get_threshold()[0] > thresholds[0]
        assert gc.get_threshold()[1:] == thresholds[1:]
        assert gc.isenabled()
        keep_for_good()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)


@pytest.mark.parametrize("all_used", [True, False])
def test_zeros_can_be_filled_in_and_read_like_bytes(all_used: bool) -> None:
    size = (4 << 20) + 5
    room = zeros(size, all_used=all_used)
    memoryview(room)[2 << 20 : (2 << 20) + 3] = b"abc"
    assert len(room) == size
    assert room[: 2 << 20] == bytes(2 << 20)
    assert room[2 << 20 :] == b"abc" + bytes((2 << 20) + 2)
