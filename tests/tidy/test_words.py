"""Plain English is measured: words that newcomers stumble over may only become fewer, package by package.

`words.json` holds the counts of the last commit. A count that rises fails. When counts have fallen, write them down:

    python -m tests.tidy.test_words
"""

import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator

from tests.tidy.tree import ROOT, Module, modules

LEDGER = ROOT / "tests" / "tidy" / "words.json"

SHORT_WORDS = 4
PATTERNS = {
    "behind": re.compile(r"\bbehind\b", re.IGNORECASE),
    "told": re.compile(r"\b(told|tells?|hears?|says?|said)\b", re.IGNORECASE),
    "whoever": re.compile(r"\b(whoever|nobody|somebody)\b", re.IGNORECASE),
}
PRONOUN = re.compile(r"^(It|They|Those|The same|Some)\b")

Counts = dict[str, dict[str, int]]


def docstrings(module: Module) -> Iterator[str]:
    """Yield every string that is a statement of its own: docstrings, and the text below an attribute."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value.strip()


def comments(module: Module) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def messages(module: Module) -> Iterator[str]:
    """Yield texts that users may read: strings with a space that are not docstrings, f-strings in one piece."""
    statements = {
        id(node.value)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in statements
            and " " in node.value
        ):
            yield node.value


def package_of(module: Module) -> str:
    """Return the package below `driftq` that a module belongs to, or the module's own name at the top."""
    parts = module.name.removeprefix("src/").removesuffix(".py").split("/")
    return parts[1] if parts[0] == "driftq" and len(parts) > 1 else parts[0]


def counted() -> Counts:
    """Count every pattern, by package; a package without any hit is left out."""
    found: dict[str, Counter[str]] = {}
    for module in modules("src"):
        count = found.setdefault(package_of(module), Counter())
        written = list(docstrings(module))
        count["short docstring"] += sum(len(text.split()) <= SHORT_WORDS for text in written)
        count["pronoun first"] += sum(bool(PRONOUN.match(text)) for text in written)
        for name, pattern in PATTERNS.items():
            count[name] += sum(len(pattern.findall(text)) for text in (*written, *comments(module)))
            count[f"{name} in messages"] += sum(len(pattern.findall(text)) for text in messages(module))
    return {package: dict(sorted((+count).items())) for package, count in sorted(found.items()) if +count}


def test_words_that_newcomers_stumble_over_become_fewer() -> None:
    kept: Counts = json.loads(LEDGER.read_text(encoding="utf-8"))
    now = counted()
    risen = [
        f"{package}: {name!r} {kept.get(package, {}).get(name, 0)} -> {count}"
        for package, counts in now.items()
        for name, count in counts.items()
        if count > kept.get(package, {}).get(name, 0)
    ]
    assert not risen, "reword these (docs/hacking.md, How we write):\n" + "\n".join(risen)


if __name__ == "__main__":
    LEDGER.write_text(json.dumps(counted(), indent=1) + "\n", encoding="utf-8")
    totals: Counter[str] = Counter()
    for counts in counted().values():
        totals.update(counts)
    sys.stdout.write("".join(f"{count:5} {name}\n" for name, count in sorted(totals.items())))
