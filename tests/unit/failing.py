"""Calls that fail as only a bug does."""

from collections.abc import Callable
from typing import Any

import pytest


class BugError(Exception):
    """Nothing that anybody expects."""


def fail_once(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, where: Callable[..., bool] = lambda *_: True
) -> list[BugError]:
    """Let the next call of a method fail for which `where` holds. The answer has what was raised so far."""
    known = getattr(owner, name)
    raised: list[BugError] = []

    def call(*args: Any, **options: Any) -> Any:
        if not raised and where(*args):
            raised.append(BugError())
            raise raised[0]
        return known(*args, **options)

    monkeypatch.setattr(owner, name, call)
    return raised
