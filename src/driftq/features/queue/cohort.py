"""Cohorts: claims that arrive within one window are served evenly in one pass (http-v0 §14.2). Pure.

A window opens with the first claim and lasts for the topic's `claim_jitter_ms`. Claims that arrive in this time join
the cohort. Then the jobs are dealt in turns, one to each claimer that is below its limit, until no job or no such
claimer is left.
"""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def deal(items: Sequence[T], limits: Sequence[int]) -> list[list[T]]:
    """Deal items in their order, one to each hand in turn. No hand becomes larger than its limit."""
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
