"""The graph of routers, topics as nodes: may this edge be added? Pure, and by names.

Two rules: a topic is fed from one source only, and a record must not come back to where it was, unless that is wanted.
The second is judged over all edges but the router's own, those that allow cycles among them.
"""

from collections.abc import Iterable


def fed_by_another(edges: Iterable[tuple[str, str]], source: str, dest: str) -> bool:
    """Is there an edge from some other source to this dest?"""
    return any(end == dest and start != source for start, end in edges)


def cycle_with(edges: Iterable[tuple[str, str]], source: str, dest: str) -> list[str] | None:
    """The way back that an edge from source to dest would close: it begins and ends at source. None without one."""
    following: dict[str, list[str]] = {}
    for start, end in edges:
        following.setdefault(start, []).append(end)
    came_from: dict[str, str] = {dest: source}
    reached = [dest]
    while reached:
        node = reached.pop()
        if node == source:
            return _way(came_from, source, dest)
        for end in following.get(node, ()):
            if end not in came_from:
                came_from[end] = node
                reached.append(end)
    return None


def _way(came_from: dict[str, str], source: str, dest: str) -> list[str]:
    way = [source]
    node = came_from[source]
    while node != source:
        way.append(node)
        if node == dest:
            break
        node = came_from[node]
    return [source, *way[:0:-1], source]
