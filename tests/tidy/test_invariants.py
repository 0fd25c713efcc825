"""The invariants of the v0 contract, each with the tests that show it: docs/guarantees.md against `inv:` lines.

A test cites an invariant as `inv:` and its number, in its docstring or in a comment inside it. A row names tests that
cite its number; `python -m tests.tidy.test_invariants` writes all of them into it, after tests have come or gone.
"""

import re
from collections import defaultdict

from tests.tidy.tree import ROOT, Function, functions, modules

PAGE = ROOT / "docs/guarantees.md"
HEADING = "## Invariants of the v0 contract\n"
COUNT = 87

_CITED = re.compile(r"\binv:\s*(\d+(?:\s*,\s*\d+)*)")
_ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]*) \|$", re.MULTILINE)


def cited() -> dict[int, list[str]]:
    """The tests that cite each number, as `file::test`, sorted."""
    found: dict[int, set[str]] = defaultdict(set)
    for module in modules("tests"):
        if module.name.startswith("tests/tidy/"):
            continue
        lines = module.text.splitlines()
        for function in functions(module):
            if function.name.startswith("test_"):
                for number in _numbers("\n".join(lines[_first_line(function) - 1 : function.end_lineno])):
                    found[number].add(f"{module.name.removeprefix('tests/')}::{function.name}")
    return {number: sorted(tests) for number, tests in found.items()}


def _numbers(text: str) -> list[int]:
    return [int(number) for numbers in _CITED.findall(text) for number in numbers.split(",")]


def _first_line(function: Function) -> int:
    """Its decorators belong to a test, and what is said between them."""
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])


def rows() -> dict[int, list[str]]:
    """The tests of each row of the table, by number."""
    table = PAGE.read_text(encoding="utf-8").partition(HEADING)[2]
    return {int(number): re.findall(r"`([^`]+)`", tests) for number, _, tests in _ROW.findall(table)}


def test_every_invariant_stands_in_the_table() -> None:
    assert list(rows()) == list(range(1, COUNT + 1))


def test_every_invariant_is_shown_by_the_tests_that_its_row_names() -> None:
    shown = cited()
    wrong = [number for number, tests in rows().items() if not tests or set(tests) - set(shown.get(number, ()))]
    assert not wrong, "no test, or one that does not cite the number: `python -m tests.tidy.test_invariants` mends rows"


def test_no_test_cites_a_number_that_is_none() -> None:
    assert not {number: tests for number, tests in cited().items() if not 1 <= number <= COUNT}


def write_table() -> None:
    """Put the tests of today into the table."""
    shown = cited()

    def filled(row: re.Match[str]) -> str:
        tests = ", ".join(f"`{test}`" for test in shown.get(int(row[1]), ()))
        return f"| {row[1]} | {row[2]} | {tests} |"

    head, heading, table = PAGE.read_text(encoding="utf-8").partition(HEADING)
    PAGE.write_text(head + heading + _ROW.sub(filled, table), encoding="utf-8")


if __name__ == "__main__":
    write_table()
