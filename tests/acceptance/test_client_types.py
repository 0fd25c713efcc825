"""A sample project of a user, under the strictest type checking: what is right passes, what is wrong is found."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.process import ROOT, environment

_SAMPLE = Path(__file__).with_name("sample_project")
_PATIENCE_S = 300


def _checked(directory: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """What mypy says of a project whose author has installed DriftQ."""
    flags = ("--strict", "--python-version", "3.11", "--follow-imports", "silent", "--cache-dir", str(cache))
    return subprocess.run(
        [sys.executable, "-m", "mypy", *flags, "."],
        cwd=directory,
        env=environment(MYPYPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mypy")


def test_a_strict_project_has_nothing_to_complain_about(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "billing.py").write_bytes((_SAMPLE / "billing.py").read_bytes())
    found = _checked(tmp_path, cache)
    assert found.returncode == 0, found.stdout + found.stderr


def test_mistakes_are_found_where_they_are(tmp_path: Path, cache: Path) -> None:
    text = (_SAMPLE / "wrong.py.txt").read_text(encoding="utf-8")
    (tmp_path / "wrong.py").write_text(text, encoding="utf-8")
    found = _checked(tmp_path, cache)
    expected = {number for number, line in enumerate(text.split("\n"), 1) if line.endswith("# wrong")}
    told = {int(number) for number in re.findall(r"^wrong\.py:(\d+): error", found.stdout, re.MULTILINE)}
    assert told == expected, found.stdout + found.stderr
