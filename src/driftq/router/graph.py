"""The graph of routers, topics as nodes: would this edge close a cycle? Pure, and by names.

Judged over all edges but the router's own, those of routers that allow cycles among them: a record must not come back
to where it was, unless that is wanted by whoever adds the last edge.
"""

from collections.abc import Callable, Iterable


def cycle_with(following: Callable[[str], Iterable[str]], source: str, dest: str) -> list[str] | None:
    """The way that an edge from source to dest would close: it begins and ends at source. None when there is none.

    `following` gives the ends of the edges that begin at a node.
    """
    came_from: dict[str, str] = {dest: source}
    reached = [dest]
    while reached:
        node = reached.pop()
        if node == source:
            return _way(came_from, source, dest)
        for end in following(node):
            if end not in came_from:
                came_from[end] = node
                reached.append(end)
    return None


def _way(came_from: dict[str, str], source: str, dest: str) -> list[str]:
    way = [source]
    while way[-1] != dest:
        way.append(came_from[way[-1]])
    return [source, *reversed(way)]
