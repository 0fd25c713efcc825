"""The allocator: what it is asked for it either does or leaves alone."""

import ctypes

import pytest

from driftq.seam.memory import give_freed_memory_back, keep_freed_memory


def test_another_c_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: object) -> object:
        return object()

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert not keep_freed_memory()
    assert not give_freed_memory_back()


def test_giving_back_what_is_not_there_is_no_error() -> None:
    give_freed_memory_back()
    assert give_freed_memory_back() in (True, False)
