"""Cycles in the graph of routers."""

from driftq.features.router.router_rules import cycle_with

EDGES = {"a": ["b", "x"], "b": ["c"], "c": ["d"], "x": ["y"], "y": ["x"]}


def following(node: str) -> list[str]:
    return EDGES.get(node, [])


def test_an_edge_that_closes_a_way_is_found_with_the_whole_way() -> None:
    """inv: 50"""
    assert cycle_with(following, "c", "a") == ["c", "a", "b", "c"]
    assert cycle_with(following, "b", "a") == ["b", "a", "b"]
    assert cycle_with(following, "d", "b") == ["d", "b", "c", "d"]


def test_an_edge_that_closes_nothing_is_fine_even_beside_a_cycle() -> None:
    assert cycle_with(following, "a", "c") is None
    assert cycle_with(following, "z", "a") is None
    assert cycle_with(following, "d", "x") is None
