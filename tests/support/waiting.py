"""Waiting for something another process does: asked again and again, until it is so or patience ends."""

import time
from collections.abc import Callable
from typing import TypeVar

from tests.support.process import PATIENCE_S

T = TypeVar("T")

_STEP_S = 0.02


def until(ask: Callable[[], T], holds: Callable[[T], bool], patience_s: float = PATIENCE_S) -> T:
    """What `ask` answers once it holds."""
    end = time.monotonic() + patience_s
    while not holds(found := ask()):
        assert time.monotonic() < end, found
        time.sleep(_STEP_S)
    return found
