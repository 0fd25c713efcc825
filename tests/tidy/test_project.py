"""The paperwork agrees with the code: versions of Python, licence, version, changelog, coverage, commands in pages."""

import json
import re
import tomllib
from typing import Any

import pytest
from msgspec import yaml

import driftq
from tests.tidy.tree import ROOT, modules, texts

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
_RELEASE = re.compile(r"^## (.+)$", re.MULTILINE)


def text(name: str) -> str:
    return texts()[name]


def test_hosted_checks_run_make_test_on_every_python_that_is_supported() -> None:
    job = yaml.decode(text(".github/workflows/test.yml"))["jobs"]["test"]
    matrix = job["strategy"]["matrix"]
    claimed = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
    assert matrix["python"] == claimed == ["3.11", "3.12", "3.13"]
    assert matrix["may-fail"] == [False]
    assert matrix["include"] == [{"python": "3.14", "may-fail": True}]
    assert [step["run"].split()[:2] for step in job["steps"] if "run" in step] == [["make", "test"]]


def test_the_licence_is_named_by_its_id() -> None:
    assert f"SPDX-License-Identifier: {PROJECT['license']}\n" in text("LICENSE")
    assert PROJECT["license"] in text("README.md")


def test_the_changelog_begins_with_unreleased_and_then_this_version() -> None:
    released = _RELEASE.findall(text("CHANGELOG.md"))
    assert [name.split()[0] for name in released[:2]] == ["Unreleased", driftq.__version__]


def test_security_fixes_are_promised_for_this_version() -> None:
    minor = ".".join(driftq.__version__.split(".")[:2])
    assert f"({minor}.x)" in text("SECURITY.md")


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "docs/hacking.md", ".github/pull_request_template.md"]
)
def test_every_make_target_that_a_page_names_exists(name: str) -> None:
    named = set(re.findall(r"(?<![\w.])make ([a-z]+)", "\n".join(re.findall(r"`[^`]+`", text(name)))))
    assert named
    assert not named - _TARGETS


def test_coverage_has_a_floor_of_90_percent_or_more() -> None:
    """`.ci/coverage` measures these packages; `# pragma: no cover` needs a reason, and 20 of them are the most."""
    floors = json.loads((ROOT / ".ci/coverage.json").read_text(encoding="utf-8"))
    measured = ("model/", "storage/", "engine/", "features/queue/", "features/queue/lease_", "features/broker/state/")
    assert floors.keys() == {f"src/driftq/{prefix}" for prefix in measured}
    assert min(floors.values()) >= 90
    assert ".ci/coverage\n" in (ROOT / ".ci/run").read_text(encoding="utf-8")
    left_out = [line for module in modules("src") for line in module.text.splitlines() if "no cover" in line]
    assert len(left_out) <= 20
    assert not [line for line in left_out if not re.search(r"# pragma: no cover: \S+ \S+", line)]
