"""The invariants of both contracts, each with the tests that show it: docs/guarantees.md against what tests cite.

A test cites an invariant of the v0 contract as `inv:` and its number, one of the v1 contract as `inv1:` and its number,
in its docstring or in a comment inside it. A row names tests that cite its number; `python -m
tests.tidy.test_invariants` writes all of them into it, after tests have come or gone.
"""

import re
from collections import defaultdict
from typing import NamedTuple

import pytest

from tests.tidy.tree import ROOT, Function, functions, modules

PAGE = ROOT / "docs/guarantees.md"

_ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]*) \|$", re.MULTILINE)


class Contract(NamedTuple):
    """One table, and the word its tests use."""

    heading: str
    word: str
    total: int

    def numbers(self, text: str) -> list[int]:
        """The numbers that a text cites."""
        found = re.findall(rf"\b{self.word}:\s*(\d+(?:\s*,\s*\d+)*)", text)
        return [int(number) for numbers in found for number in numbers.split(",")]

    def parts(self) -> tuple[str, str, str]:
        """The page: what is before the table, the table, what is behind it."""
        head, heading, rest = PAGE.read_text(encoding="utf-8").partition(f"{self.heading}\n")
        table, following, tail = rest.partition("\n## ")
        return head + heading, table, following + tail


V0 = Contract("## Invariants of the v0 contract", "inv", 87)
V1 = Contract("## Invariants of the v1 contract", "inv1", 78)
both = pytest.mark.parametrize("contract", [V0, V1], ids=["v0", "v1"])


def cited(contract: Contract) -> dict[int, list[str]]:
    """The tests that cite each number, as `file::test`, sorted."""
    found: dict[int, set[str]] = defaultdict(set)
    for module in modules("tests"):
        if module.name.startswith("tests/tidy/"):
            continue
        lines = module.text.splitlines()
        for function in functions(module):
            if function.name.startswith("test_"):
                for number in contract.numbers("\n".join(lines[_first_line(function) - 1 : function.end_lineno])):
                    found[number].add(f"{module.name.removeprefix('tests/')}::{function.name}")
    return {number: sorted(tests) for number, tests in found.items()}


def _first_line(function: Function) -> int:
    """Its decorators belong to a test, and what is said between them."""
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])


def rows(contract: Contract) -> dict[int, list[str]]:
    """The tests of each row of a table, by number."""
    _, table, _ = contract.parts()
    return {int(number): re.findall(r"`([^`]+)`", tests) for number, _, tests in _ROW.findall(table)}


@both
def test_every_invariant_stands_in_the_table(contract: Contract) -> None:
    assert list(rows(contract)) == list(range(1, contract.total + 1))


@both
def test_every_invariant_is_shown_by_the_tests_that_its_row_names(contract: Contract) -> None:
    shown = cited(contract)
    wrong = [n for n, tests in rows(contract).items() if not tests or set(tests) - set(shown.get(n, ()))]
    assert not wrong, "no test, or one that does not cite the number: `python -m tests.tidy.test_invariants` mends rows"


@both
def test_no_test_cites_a_number_that_is_none(contract: Contract) -> None:
    assert not {number: tests for number, tests in cited(contract).items() if not 1 <= number <= contract.total}


def write_table(contract: Contract) -> None:
    """Put the tests of today into a table."""
    shown = cited(contract)

    def filled(row: re.Match[str]) -> str:
        tests = ", ".join(f"`{test}`" for test in shown.get(int(row[1]), ()))
        return f"| {row[1]} | {row[2]} | {tests} |"

    head, table, tail = contract.parts()
    PAGE.write_text(head + _ROW.sub(filled, table) + tail, encoding="utf-8")


if __name__ == "__main__":
    for known in (V0, V1):
        write_table(known)
