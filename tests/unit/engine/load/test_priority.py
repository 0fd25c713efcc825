"""Bands: who is served next."""

from collections import Counter

import pytest

from driftq.engine.load.priority import CREDIT, Bands, band_of


@pytest.mark.parametrize(
    ("priority", "band"),
    [(2000, 0), (750, 0), (749, 1), (500, 1), (499, 2), (250, 2), (249, 3), (0, 3), (-1, 4), (-1000, 4)],
)
def test_a_priority_has_its_band(priority: int, band: int) -> None:
    assert band_of(priority) == band


def taken(bands: Bands[str], times: int, *, cost: int = CREDIT, now_ms: int = 0) -> list[str]:
    """Take so many, each of which asks again at once."""
    found = []
    for _ in range(times):
        one = bands.take(now_ms)
        bands.spend(cost)
        bands.add(one, int(one.partition(":")[2]), now_ms)
        found.append(one)
    return found


def test_inside_a_band_the_first_to_come_is_the_first_to_be_served() -> None:
    bands: Bands[str] = Bands()
    for name in ("b:10", "a:0", "c:249"):
        bands.add(name, int(name[2:]), 0)
    assert taken(bands, 6) == ["b:10", "a:0", "c:249", "b:10", "a:0", "c:249"]


def test_bands_share_by_their_weights_and_none_starves() -> None:
    bands: Bands[str] = Bands()
    for priority in (800, 600, 300, 0, -5):
        bands.add(f"x:{priority}", priority, 0)
    shares = Counter(taken(bands, 1600))
    assert shares == {"x:800": 800, "x:600": 400, "x:300": 200, "x:0": 100, "x:-5": 100}


def test_what_costs_more_is_served_less_often() -> None:
    bands: Bands[str] = Bands()
    bands.add("dear", 800, 0)
    bands.add("cheap", 0, 0)
    spent: Counter[str] = Counter()
    for _ in range(400):
        one = bands.take(0)
        cost = 16 * CREDIT if one == "dear" else CREDIT // 4
        bands.spend(cost)
        spent[one] += cost
        bands.add(one, 800 if one == "dear" else 0, 0)
    assert spent["dear"] / spent["cheap"] == pytest.approx(8, rel=0.3)


def test_a_band_that_was_empty_has_neither_credit_nor_debt() -> None:
    bands: Bands[str] = Bands()
    bands.add("dear", 800, 0)
    bands.take(0)
    bands.spend(1000 * CREDIT)
    bands.add("other", 0, 0)
    assert bands.take(0) == "other"
    bands.spend(1)
    bands.add("dear", 800, 0)
    bands.add("other", 0, 0)
    assert {bands.take(0), bands.take(0)} == {"dear", "other"}
    assert not len(bands)


def test_what_waits_rises() -> None:
    """A tenth of a point per millisecond: after ten seconds the lowest is among the highest."""
    bands: Bands[str] = Bands()
    bands.add("low", -100, 0)
    for number in range(3):
        bands.add(f"high {number}", 900, 9_900)
    bands.add("middle", 0, 9_950)
    order = [bands.take(10_000) for _ in range(5)]
    assert order.index("low") < order.index("middle")
    assert order[:4] == ["high 0", "high 1", "high 2", "low"]
