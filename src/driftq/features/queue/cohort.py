"""Cohorts: claims that arrive within one window are served in one pass, evenly (http-v0 §14.2). Pure.

A window opens with the first claim and lasts as long as the topic says; whoever comes meanwhile is in it. Then all jobs
there are go round: one to each who has not had all that he asked for, until either is at its end.
"""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def deal(items: Sequence[T], limits: Sequence[int]) -> list[list[T]]:
    """Hands of items, dealt in their order, one by one, none larger than its limit."""
    if len(limits) == 1:
        return [list(items[: limits[0]])]
    hands: list[list[T]] = [[] for _ in limits]
    dealt = iter(items)
    open_hands = [number for number, limit in enumerate(limits) if limit > 0]
    while open_hands:
        for number in open_hands:
            item = next(dealt, None)
            if item is None:
                return hands
            hands[number].append(item)
        open_hands = [number for number in open_hands if len(hands[number]) < limits[number]]
    return hands
