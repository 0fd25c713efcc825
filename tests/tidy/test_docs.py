"""The documentation points at things that exist, and names nothing of the machine it was written on."""

import ast
import posixpath
import re

import pytest

from tests.tidy.tree import ROOT, modules, pages, texts

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
_PLACE = re.compile(r"`([a-z0-9_]+(?:/[a-z0-9_]+)+(?::[\w.]+)?)`")
"""A module of the source by its path, and optionally a function or class in it: `engine/read/topic_page:read_page`."""
_LOOKED_FOR = (
    "an `fsync` write is acked only after the sync",
    "a tombstone below `evict_floor`",
    "a delete flag (0xD5)",
    "jobs are divided over the claims of one window",
    "a lease expires and its job is claimable again",
    "a job becomes a dead letter after `max_deliveries`",
    "a cycle is refused",
    "a `source_trim` hole",
    "the id of an event, and resuming from it",
    "a nack schedules a retry with backoff",
    "a produce is new, a duplicate or busy",
    "the router hook, its timeout and failures",
    "the sink commits a batch exactly once",
    "the archive is verified",
)
"""Behaviours whose place in the code `docs/README.md` must name."""

_NOT_MODULES = {"disk"}
"""Words of the pages that are also names of modules: a durability class."""

# In pieces, so that this file does not name what it forbids.
_REGISTRY_HOSTS = ("py" + "pi.org", "pythonhosted" + ".org", "py" + "pi.python.org", "anaconda" + ".org")
_MACHINE_PATH = re.compile(r"(?<![\w.…-])/(?:work|root|farm)/")


def _anchors(page: str) -> set[str]:
    """The anchors a renderer makes of a page's headings."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in _HEADING.findall(page)}


def test_every_relative_link_resolves() -> None:
    everything = pages()
    broken = []
    for name, page in everything.items():
        for link in _LINK.findall(page):
            target, _, anchor = link.partition("#")
            if "://" in link or link.startswith("mailto:"):
                continue
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), target)) if target else name
            if not (ROOT / path).exists() or (anchor and anchor not in _anchors(everything.get(path, ""))):
                broken.append(f"{name}: {link}")
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "docs/README.md", "docs/architecture.md"])
def test_the_pages_a_newcomer_opens_are_there(name: str) -> None:
    assert len(pages()[name]) > 200


def test_every_page_can_be_reached_from_the_reading_order() -> None:
    listed = {posixpath.normpath(posixpath.join("docs", link)) for link in _LINK.findall(pages()["docs/README.md"])}
    lost = [
        name
        for name in pages()
        if name.startswith("docs/") and name != "docs/README.md" and not listed & {name, posixpath.dirname(name)}
    ]
    assert not lost, "\n".join(lost)


def test_no_registry_and_no_machine_path_in_any_file() -> None:
    found = [
        f"{name}:{number} {line.strip()[:100]}"
        for name, text in texts().items()
        if _MACHINE_PATH.search(text) or any(host in text for host in _REGISTRY_HOSTS)
        for number, line in enumerate(text.split("\n"), 1)
        if _MACHINE_PATH.search(line) or any(host in line for host in _REGISTRY_HOSTS)
    ]
    assert not found, "\n".join(found)


def _definitions(tree: ast.AST, prefix: str = "") -> set[str]:
    """Return the functions and classes of a module, and the methods of its classes as `Class.method`."""
    found = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            found |= _definitions(node, f"{prefix}{node.name}.")
    return found


def _missing_place(place: str) -> str | None:
    """Return what is wrong with a package, `module/path` or `module/path:Class.method`, None if it exists."""
    module, _, attribute = place.partition(":")
    if not attribute and (ROOT / "src/driftq" / module / "__init__.py").is_file():
        return None
    path = ROOT / "src/driftq" / f"{module}.py"
    if not path.is_file():
        return f"{place}: no such module or package"
    if attribute and attribute not in _definitions(ast.parse(path.read_text(encoding="utf-8"))):
        return f"{place}: the module does not define it"
    return None


@pytest.mark.parametrize("name", ["docs/README.md", "docs/architecture.md"])
def test_every_place_in_the_code_that_a_page_names_exists(name: str) -> None:
    places = _PLACE.findall(pages()[name])
    assert len(places) > 40
    missing = [problem for problem in map(_missing_place, places) if problem is not None]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("name", ["docs/README.md", "docs/architecture.md"])
def test_a_module_is_named_by_its_path_below_the_package(name: str) -> None:
    """Its bare name would stay when the module moves. The table of Spark's private names is about one package."""
    page = pages()[name].partition("## Private names of Spark")[0]
    inner = {module.path.stem for module in modules("src") if module.name.count("/") > 2}
    known = {module.path.parent.name for module in modules("src")} | {"errors"} | _NOT_MODULES
    bare = set(re.findall(r"`([a-z0-9_]+)`", page)) & inner - known
    assert not bare, f"write the path of these modules: {sorted(bare)}"


def _tests_of(module: str, rows: dict[str, list[str]]) -> list[str]:
    """Return the tests of the row with the longest path that is the module's own or that of a package around it."""
    fitting = [path for path in rows if f"{module}/".startswith(f"{path}/")]
    return rows[max(fitting, key=len)] if fitting else []


def test_the_tests_of_every_module_can_be_found() -> None:
    """A module has a test of its own path, or a row of hacking.md covers it and all the tests of that row exist."""
    table = pages()["docs/hacking.md"].partition("**Where is the test of a module?**")[2].partition("**Coverage.**")[0]
    rows: dict[str, list[str]] = {}
    for line in table.splitlines():
        if line.startswith("| `"):
            names, tests = (re.findall(r"`([^`]+)`", cell) for cell in line.strip("| ").split(" | "))
            rows |= {path: [test for test in tests if test != "rig"] for path in names}
    missing = [test for tests in rows.values() for test in tests if not list(ROOT.glob(test))]
    wrong = [f"{path}: no such module or package" for path in rows if not _exists(path)]
    without = []
    for module in modules("src/driftq"):
        path = module.path.relative_to(ROOT / "src/driftq").with_suffix("")
        mirror = ROOT / "tests/unit" / path.parent / f"test_{path.name}.py"
        if not module.is_package and not mirror.is_file() and not _tests_of(str(path), rows):
            without.append(str(path))
    assert not missing + wrong + without, f"no such tests: {missing}; wrong rows: {wrong}; no row: {without}"


def _exists(path: str) -> bool:
    return (ROOT / "src/driftq" / path).is_dir() or (ROOT / f"src/driftq/{path}.py").is_file()


def test_a_place_that_does_not_exist_is_found() -> None:
    assert _missing_place("engine/read/topic_page:_tombstone") is None
    assert _missing_place("features/queue/claims:Claimer.claim") is None
    assert _missing_place("engine/nowhere") is not None
    assert _missing_place("engine/read/topic_page:nothing") is not None
    assert _missing_place("features/queue/claims:Claimer.nothing") is not None


def test_the_table_of_places_names_functions_for_what_newcomers_look_for() -> None:
    table = pages()["docs/README.md"].partition("## Where is")[2]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    for behaviour in _LOOKED_FOR:
        found = [row for row in rows if behaviour in row]
        assert len(found) == 1, f"{behaviour}: {len(found)} rows"
        assert any(":" in place for place in _PLACE.findall(found[0])), f"{behaviour}: no function is named"


def test_every_decision_has_a_number_of_its_own() -> None:
    numbers = [path.name[:4] for path in sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))]
    assert numbers == [f"{number:04}" for number in range(1, len(numbers) + 1)]


def test_every_variable_of_the_pipeline_is_in_its_table_of_settings_and_in_a_test() -> None:
    code = [text for name, text in texts().items() if name.startswith("src/driftq/pipeline/")]
    tests = "".join(text for name, text in texts().items() if name.startswith("tests/") and "/tidy/" not in name)
    read = {name for text in code for name in re.findall(r"\"(DRIFTQ_[A-Z_]+)\"", text)}
    session = pages()["docs/pipeline.md"].partition("## The session")[2].partition("\n## ")[0]
    listed = {
        name for row in re.findall(r"^\| (.+?) \|", session, re.MULTILINE) for name in re.findall(r"DRIFTQ_\w+", row)
    }
    assert "DRIFTQ_PLAIN_SPARK" in read
    assert read == listed
    assert not [name for name in read if name not in tests]
