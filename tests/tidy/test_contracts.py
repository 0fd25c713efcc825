"""Every section of a contract that is cited exists, and the numbers that others cite are complete.

A citation is `http-v0 §19.4`, `http-v1 §1.1.12` (item 12 of the list in section 1.1) or `spark.md §3`. A `§` without a
name belongs to the contract named last before it in the same file; in a contract, to that contract itself. `RFC 9113
§3.4` is a citation of something else.
"""

import re
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.tidy.test_invariants import V0, V1, Contract
from tests.tidy.tree import ROOT, texts

CONTRACTS = {name: f"docs/contract/{name}.md" for name in ("http-v0", "http-v1", "spark")}

_CITATION = re.compile(r"(?P<rfc>RFC \d+ )?(?:(?P<name>[\w-]+)(?:\.md)?`? )?§ ?(?P<section>\d+(?:\.\d+)*)")
_HEADING = re.compile(r"^#{2,} (\d+(?:\.\d+)*)\.? .*$", re.MULTILINE)
_CITING = ("src/", "tests/", "docs/", "bench/", "examples/", "tools/", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")


def sections(page: str) -> list[str]:
    """Return the number of every heading of a page, in their order."""
    return _HEADING.findall(page)


def items(page: str) -> set[str]:
    """Return the number of every item of a numbered list, below the number of its section."""
    heads = list(_HEADING.finditer(page))
    return {
        f"{head[1]}.{number}"
        for head, following in pairwise([*heads, None])
        if head is not None
        for number in re.findall(
            r"^(\d+)\. ", page[head.end() : following.start() if following else None], re.MULTILINE
        )
    }


def citations(name: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield the contract and the section of every citation in a file."""
    own = next((contract for contract, path in CONTRACTS.items() if path == name), "")
    last = own
    for found in _CITATION.finditer(text):
        if found["rfc"]:
            continue
        if found["name"] in CONTRACTS:
            last = found["name"]
            yield last, found["section"]
        else:
            yield own or last, found["section"]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {name: (ROOT / path).read_text(encoding="utf-8") for name, path in CONTRACTS.items()}


def test_every_cited_section_exists(pages: dict[str, str]) -> None:
    known = {(name, number) for name, page in pages.items() for number in [*sections(page), *items(page)]}
    wrong = [
        f"{name}: {contract or 'no contract'} §{section}"
        for name, text in texts().items()
        if name.startswith(_CITING) and name != "tests/tidy/test_contracts.py"
        for contract, section in citations(name, text)
        if (contract, section) not in known
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", CONTRACTS)
def test_sections_are_numbered_without_a_break(pages: dict[str, str], name: str) -> None:
    numbers = [tuple(map(int, number.split("."))) for number in sections(pages[name])]
    assert numbers == sorted(numbers)
    tops = [number[0] for number in numbers if len(number) == 1]
    assert tops == list(range(tops[0], tops[0] + len(tops)))


@pytest.mark.parametrize(("name", "contract"), [("http-v0", V0), ("http-v1", V1)])
def test_every_invariant_is_in_the_contract_once(pages: dict[str, str], name: str, contract: Contract) -> None:
    _, _, rest = pages[name].partition("\n## 20. ")
    numbers = re.findall(r"^(\d+)\. ", rest.partition("\n## 21. ")[0], re.MULTILINE)
    assert numbers == [str(number) for number in range(1, contract.total + 1)]


@pytest.mark.parametrize("name", CONTRACTS)
def test_a_contract_speaks_for_this_project_alone(pages: dict[str, str], name: str) -> None:
    """No page needs a document that is not in the repository, and none describes another implementation."""
    words = re.findall(
        r"\bseed\b|\breference\b|design\.md|spark-facts|\bfacts §|\.\./seeds|†", pages[name], re.IGNORECASE
    )
    assert not words
