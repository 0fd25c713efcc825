"""House rules for modules and functions that the linter does not know."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.tree import Function, Module, functions, modules

MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "managers", "core", "misc"}

_LONG = re.compile(r"^\s*# long: \S+", re.MULTILINE)
_HISTORY = re.compile(r"\bphases?\b|\bstage \d|\bTO[D]O\b|\bFIX[M]E\b", re.IGNORECASE)


def test_a_long_module_says_why_it_is_long() -> None:
    long = [
        f"{module.name}: {lines} lines and no line '# long: <reason>'"
        for module in modules("src")
        if (lines := module.text.count("\n")) > MODULE_LINES_MAX and not _LONG.search(module.text)
    ]
    assert not long, "\n".join(long)


def test_a_function_fits_a_screen() -> None:
    long = [
        f"{module.name}:{function.lineno} {function.name}: {lines} lines"
        for module in modules("src")
        for function in functions(module)
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not long, "\n".join(long)


def test_no_module_is_named_after_nothing() -> None:
    vague = [
        module.name for top in ("src", "tests") for module in modules(top) if BANNED_NAMES & set(_name_parts(module))
    ]
    assert not vague, "\n".join(vague)


def _name_parts(module: Module) -> tuple[str, ...]:
    path = Path(module.name)
    return (*path.parts[:-1], path.stem)


def test_every_module_has_a_docstring() -> None:
    bare = [
        module.name for top in ("src", "tests") for module in modules(top) if ast.get_docstring(module.tree) is None
    ]
    assert not bare, "\n".join(bare)


def test_every_public_class_and_function_has_a_docstring() -> None:
    bare = [
        f"{module.name}:{node.lineno} {node.name}"
        for module in modules("src")
        for node in _public(module.tree)
        if ast.get_docstring(node) is None
    ]
    assert not bare, "\n".join(bare)


def _public(owner: ast.Module | ast.ClassDef) -> Iterator[ast.ClassDef | Function]:
    """Public names of a module or class, and of the public classes in it; what a function defines is its own affair."""
    for node in owner.body:
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_") and not _spared(node):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public(node)


def _spared(node: ast.ClassDef | Function) -> bool:
    """An overload or a property's setter is documented at its first form."""
    names = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    return bool(names & {"overload", "setter", "override"})


def test_comments_tell_reasons_not_history() -> None:
    told = [
        f"{module.name}:{line} {found.group()}"
        for top in ("src", "tests", "bench")
        for module in modules(top)
        if _HISTORY.search(module.text)
        for line, remark in _remarks(module)
        if (found := _HISTORY.search(remark))
    ]
    assert not told, "\n".join(told)


def _remarks(module: Module) -> Iterator[tuple[int, str]]:
    """Comments and docstrings: any text that stands alone as a statement."""
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
