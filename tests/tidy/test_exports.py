"""What the public packages offer is what their `__all__` says."""

import importlib
import types

import pytest

from tests.tidy.tree import ROOT

PUBLIC = [name for name in ("testing", "client", "pipeline") if (ROOT / "src/driftq" / name).is_dir()]


@pytest.mark.parametrize("name", PUBLIC)
def test_all_is_exactly_what_can_be_imported(name: str) -> None:
    package = importlib.import_module(f"driftq.{name}")
    offered = list(getattr(package, "__all__", []))
    assert all(hasattr(package, attribute) for attribute in offered)  # some are there when they are first asked for
    importable = sorted(
        attribute
        for attribute, value in vars(package).items()
        if not attribute.startswith("_") and not isinstance(value, types.ModuleType)
    )
    assert sorted(offered) == importable
    assert len(set(offered)) == len(offered)
