"""The tree shows the architecture: small packages, module names and class names that mean one thing (decision 28)."""

import ast
from collections import defaultdict

from tests.tidy.tree import modules

_MODULES_PER_PACKAGE = 12
_SHARED_CLASS_NAMES = {
    # The client raises the server's errors under the names that its users know.
    "DiskFullError",
    "ForbiddenError",
    "NotFoundError",
    "ThrottledError",
    "TopicFullError",
    "UnauthorizedError",
    # The client's handle of a topic or broker, and the server's.
    "Broker",
    "Topic",
    # A request that the client sends, and one that the server received.
    "Request",
}
"""Public class names that two packages may share, each for a reason; fewer than 12."""


def test_a_package_has_at_most_12_modules_of_its_own() -> None:
    """More are a crowd: a reader cannot see what belongs together."""
    counts: dict[str, int] = defaultdict(int)
    for module in modules("src"):
        if not module.is_package:
            counts[module.name.rpartition("/")[0]] += 1
    crowds = [f"{package}: {count} modules" for package, count in counts.items() if count > _MODULES_PER_PACKAGE]
    assert not crowds, "\n".join(crowds)


def test_a_public_class_name_means_one_class() -> None:
    places = defaultdict(list)
    for module in modules("src"):
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module.name)
    shared = {name: where for name, where in places.items() if len(where) > 1}
    assert shared.keys() == _SHARED_CLASS_NAMES, {
        name: shared.get(name) for name in shared.keys() ^ _SHARED_CLASS_NAMES
    }
