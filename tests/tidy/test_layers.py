"""The layers hold: the contracts stand in pyproject.toml."""

import pytest
from importlinter.cli import lint_imports

from tests.tidy.tree import ROOT, modules


def test_every_import_contract_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    broken = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True, no_logo=True)
    assert not broken, capsys.readouterr().out


def test_package_files_hold_a_docstring_and_nothing_else() -> None:
    """The version lives in the top one; the public packages re-export."""
    spared = {"src/driftq/__init__.py"} | {
        f"src/driftq/{public}/__init__.py" for public in ("testing", "client", "pipeline")
    }
    full = [m.name for m in modules("src") if m.is_package and len(m.tree.body) != 1 and m.name not in spared]
    assert not full, "\n".join(full)
