"""Every promise has a number, and every number has a test: docs/guarantees.md against `proves:` lines.

The same for the failure table of docs/operating.md: a test cites the row that it executes as `row:` and the id.
"""

import ast
import re
from collections import Counter

from tests.crash.test_sync_sites import SHOWN_ELSEWHERE
from tests.tidy.tree import ROOT, functions, modules

PAGE = ROOT / "docs/guarantees.md"

_ID = re.compile(r"G-[A-Z]+-\d+")
_LISTED = re.compile(r"^\| (G-[A-Z]+-\d+) \|", re.MULTILINE)
_PROVES = re.compile(r"proves:\s*((?:G-[A-Z]+-\d+[,;.\s]*)+)")

FAILURES = ROOT / "docs/operating.md"

_LISTED_ROW = re.compile(r"^\| (F-[A-Z]+-\d+) \|", re.MULTILINE)
_EXECUTED_ROW = re.compile(r"row:\s*((?:F-[A-Z]+-\d+[,;.\s]*)+)")
_ROW = re.compile(r"F-[A-Z]+-\d+")


def _promised() -> set[str]:
    assert PAGE.is_file(), "docs/guarantees.md is missing: it lists the promises (G-DUR-1 and so on) that tests prove"
    ids = set(_ID.findall(PAGE.read_text(encoding="utf-8")))
    assert ids, "docs/guarantees.md names no guarantee id"
    return ids


def _cited() -> dict[str, str]:
    """Each cited id and one file that cites it."""
    return {
        cited: module.name
        for module in modules("tests")
        if "tests/tidy/" not in module.name
        for ids in _PROVES.findall(module.text)
        for cited in _ID.findall(ids)
    }


def test_no_two_guarantees_have_the_same_id() -> None:
    times = Counter(_LISTED.findall(PAGE.read_text(encoding="utf-8")))
    assert times
    assert max(times.values()) == 1, [listed for listed, count in times.items() if count > 1]


def test_every_guarantee_is_proved_by_a_test() -> None:
    unproved = sorted(_promised() - set(_cited()))
    assert not unproved, "\n".join(unproved)


def test_every_cited_guarantee_exists() -> None:
    promised = _promised()
    unknown = sorted(f"{name}: {cited}" for cited, name in _cited().items() if cited not in promised)
    assert not unknown, "\n".join(unknown)


def test_every_row_of_the_failure_table_is_executed_by_a_test() -> None:
    listed = _LISTED_ROW.findall(FAILURES.read_text(encoding="utf-8"))
    executed = {
        row
        for module in modules("tests")
        if "tests/tidy/" not in module.name
        for rows in _EXECUTED_ROW.findall(module.text)
        for row in _ROW.findall(rows)
    }
    assert listed
    assert sorted(listed) == sorted(executed)


def test_every_sync_site_names_a_test_that_ignores_it() -> None:
    """The tests of `SHOWN_ELSEWHERE` exist, and each has its site in its decorators or its body."""
    tests = {
        f"{module.path.name}::{function.name}": "\n".join(map(ast.unparse, [*function.decorator_list, function]))
        for module in modules("tests/crash")
        for function in functions(module)
    }
    wrong = [
        f"{site}: {name}" for site, name in SHOWN_ELSEWHERE.items() if f"Site.{site.name}" not in tests.get(name, "")
    ]
    assert not wrong, "\n".join(wrong)
