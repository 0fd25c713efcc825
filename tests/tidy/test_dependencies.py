"""Every dependency is pinned with hashes, belongs to a reason, and comes from nowhere in particular."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tidy.tree import texts

LOCKS = ["requirements.lock", "requirements-spark.lock", "requirements-dev.lock"]

GROUPS = [("requirements.lock", "base"), ("requirements-spark.lock", "spark"), ("requirements-dev.lock", "dev")]

_PIN = re.compile(r"^([a-z0-9-]+)==([^\s;]+)", re.MULTILINE)
_ROW = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)


def _pins(lock: str) -> dict[str, str]:
    return dict(_PIN.findall(texts()[lock]))


def _direct(group: str) -> list[Requirement]:
    project = tomllib.loads(texts()["pyproject.toml"])
    base, spark = project["project"]["dependencies"], project["project"]["optional-dependencies"]["spark"]
    lines = {"base": base, "spark": base + spark, "dev": base + spark + project["dependency-groups"]["dev"]}
    return [Requirement(line) for line in lines[group]]


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_has_hashes_and_nothing_else_is_in_the_lock(lock: str) -> None:
    entries = [entry for entry in texts()[lock].replace("\\\n", " ").split("\n") if entry and entry[0] != "#"]
    assert len(entries) == len(_PIN.findall(texts()[lock])) > 0
    loose = [
        entry.split()[0]
        for entry in entries
        if not re.fullmatch(r"[a-z0-9-]+==\S+( ; [^-]+?)?(\s+--hash=sha256:[0-9a-f]{64})+\s*", entry)
    ]
    assert not loose, "\n".join(loose)


@pytest.mark.parametrize("lock", LOCKS)
def test_no_lock_names_an_address(lock: str) -> None:
    assert not re.search(r"://|--index|--extra-index|--find-links| @ |file:", texts()[lock])


@pytest.mark.parametrize(("lock", "group"), GROUPS)
def test_the_lock_pins_what_the_project_asks_for(lock: str, group: str) -> None:
    pins = _pins(lock)
    stale = [
        str(wanted)
        for wanted in _direct(group)
        if (pin := pins.get(canonicalize_name(wanted.name))) is None or not wanted.specifier.contains(pin)
    ]
    assert not stale, "run `make lock`: " + ", ".join(stale)


def test_the_base_install_has_no_other_http_client() -> None:
    """The client has its own connection (decision 15)."""
    assert not {"httpx", "httpcore", "anyio", "sniffio"} & _pins("requirements.lock").keys()


@pytest.mark.parametrize("lock", LOCKS)
def test_all_locks_agree(lock: str) -> None:
    dev = _pins("requirements-dev.lock")
    assert {name: dev.get(name) for name in _pins(lock)} == _pins(lock)


def test_every_direct_dependency_has_its_reason_in_the_docs() -> None:
    reasons = _ROW.findall(texts()["docs/dependencies.md"])
    assert sorted(reasons) == sorted(wanted.name for wanted in _direct("dev"))
