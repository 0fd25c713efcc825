"""The sdist and the wheel: complete, described, installable, and the same whichever of them is built first.

Nothing is downloaded. The build backend is the locked one of this environment. The clean environment gets pip from the
standard library and the wheel alone; the packages that the wheel depends on are lent to it from this environment.
"""

import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import driftq
from tests.support.process import environment
from tests.tidy.tree import ROOT, texts

pytestmark = pytest.mark.slow

NAME = f"driftq-{driftq.__version__}"
LEFT_OUT = (".github/",)
"""What a checkout has and the sdist does not: the settings of the place that hosts it."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@dataclass(frozen=True)
class Built:
    """What was built, and the sdist unpacked."""

    sdist: Path
    wheel: Path
    unpacked: Path


def run(*arguments: str | Path, cwd: Path, **variables: str) -> str:
    """Run a command and return its output; fail with all of its output if it fails."""
    settings = environment(**variables)
    if "PYTHONPATH" not in variables:
        del settings["PYTHONPATH"]
    done = subprocess.run(
        list(map(str, arguments)), cwd=cwd, env=settings, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(target: str, source: Path, into: Path) -> Path:
    """Build one distribution of a source tree with the locked backend."""
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", into, cwd=source)
    (made,) = into.iterdir()
    return made


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    place = tmp_path_factory.mktemp("package")
    sdist = build("sdist", ROOT, place / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(place / "unpacked", filter="data")
    unpacked = place / "unpacked" / NAME
    return Built(sdist, build("wheel", unpacked, place / "wheel"), unpacked)


@pytest.fixture(scope="module")
def metadata(built: Built) -> Message:
    with zipfile.ZipFile(built.wheel) as wheel:
        return Parser().parsestr(wheel.read(f"{NAME}.dist-info/METADATA").decode())


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with the wheel and nothing else of its own."""
    place = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", "env", cwd=place)
    binaries = place / "env" / "bin"
    pip: Sequence[str | Path] = [binaries / "python", "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", built.wheel, cwd=place)
    (packages,) = (place / "env" / "lib").glob("python3.*/site-packages")
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return binaries


def files_of(sdist: Path) -> set[str]:
    with tarfile.open(sdist) as archive:
        return {member.name.removeprefix(f"{NAME}/") for member in archive if member.isfile()}


def test_the_sdist_is_the_checkout(built: Built) -> None:
    """Every text file; what is not text is below directories that are taken as a whole."""
    expected = {name for name in texts() if not name.startswith(LEFT_OUT)}
    found = files_of(built.sdist)
    assert not expected - found
    extra = found - expected - {"PKG-INFO"}
    assert all(name.startswith(("tests/", "docs/pictures/")) and b"\0" in (ROOT / name).read_bytes() for name in extra)
    assert {"tests/unit", "tests/golden"} <= {"/".join(name.split("/")[:2]) for name in found}


def test_the_wheel_has_the_packages_and_nothing_else(built: Built) -> None:
    source = ROOT / "src"
    expected = {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(built.wheel) as wheel:
        found = {name for name in wheel.namelist() if not name.startswith(f"{NAME}.dist-info/")}
    assert found == expected
    assert {"driftq/py.typed", "pyspark_driftq/__init__.py"} <= found


def test_the_wheel_of_the_checkout_is_that_of_the_sdist(built: Built, tmp_path: Path) -> None:
    assert build("wheel", ROOT, tmp_path / "wheel").read_bytes() == built.wheel.read_bytes()


def test_the_metadata_says_what_it_is_and_whose(metadata: Message) -> None:
    assert (metadata["Name"], metadata["Version"]) == ("driftq", driftq.__version__)
    assert metadata["Author"] == "The DriftQ authors"
    assert (metadata["License-Expression"], metadata["License-File"]) == ("Apache-2.0", "LICENSE")
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Summary"] == PROJECT["description"]
    assert set(metadata["Keywords"].split(",")) == set(PROJECT["keywords"])
    assert metadata.get_all("Classifier") == PROJECT["classifiers"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_metadata_asks_for_what_the_project_asks_for(metadata: Message) -> None:
    def plain(requirement: str) -> tuple[str, frozenset[str], str]:
        parsed = Requirement(requirement)
        return parsed.name, frozenset(parsed.extras), str(parsed.specifier)

    wanted = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    assert {plain(str(line)) for line in wanted if line.marker is None} == set(map(plain, PROJECT["dependencies"]))
    assert metadata.get_all("Provides-Extra") == ["spark"]
    spark = {plain(f"{line}".split(";")[0]) for line in wanted if line.marker is not None}
    assert spark == set(map(plain, PROJECT["optional-dependencies"]["spark"]))


def test_the_licence_travels_along(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        notice = wheel.read(f"{NAME}.dist-info/licenses/LICENSE").decode()
    assert f"SPDX-License-Identifier: {PROJECT['license']}" in notice
    assert notice == (built.unpacked / "LICENSE").read_text(encoding="utf-8")


def test_a_clean_environment_runs_the_command(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "driftq", "--version", cwd=tmp_path).strip() == f"driftq {driftq.__version__}"
    where = run(installed / "python", "-c", "import driftq; print(driftq.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)


def test_a_clean_environment_serves_and_keeps_records(installed: Path, tmp_path: Path) -> None:
    run(installed / "driftq", "selfcheck", cwd=tmp_path)


def test_the_unit_tests_of_the_sdist_are_collected_from_it(built: Built) -> None:
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", "tests/unit"]
    output = run(*collect, cwd=built.unpacked, PYTHONPATH=str(built.unpacked / "src"))
    counts = dict(re.findall(r"^(tests/unit/\S+\.py): (\d+)$", output, re.MULTILINE))
    expected = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests/unit").rglob("test_*.py")
        if "__pycache__" not in path.parts
    }
    assert set(counts) == expected
    assert all(int(count) > 0 for count in counts.values())
