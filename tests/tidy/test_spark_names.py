"""Private names of Spark are used in `pipeline/spark` only, and docs/architecture.md lists every one of them."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.tidy.tree import Module, modules, pages

_FENCE = "src/driftq/pipeline/spark/"
_PUBLIC = {
    "pyspark",
    "pyspark.errors",
    "pyspark.logger",
    "pyspark.sql",
    "pyspark.sql.connect",
    "pyspark.sql.datasource",
    "pyspark.sql.functions",
    "pyspark.sql.streaming",
    "pyspark.sql.streaming.datasource",
    "pyspark.sql.streaming.listener",
    "pyspark.sql.streaming.query",
    "pyspark.sql.streaming.readwriter",
    "pyspark.sql.types",
}
"""Modules of PySpark whose names without an underscore are documented for users."""
_MODULE = re.compile(r"(?:pyspark|py4j)(?:\.\w+)+")
_STRINGS = (
    re.compile(r"\borg\.apache\.spark[\w.]*\w"),
    re.compile(r"\b_PYSPARK_\w+|\bPYSPARK_GATEWAY_\w+"),
    re.compile(r"\bspark\.python\.(?:daemon|unix)[\w.]*\w"),
    re.compile(r"\b\w+QueryContextLogger\b"),
)
"""Java classes, variables, settings and loggers of Spark that its documentation does not have."""
_DEFINED = re.compile(r"(?:\bdef |\bclass |^[ \t]*|(?:self|cls)\.)(_[A-Za-z]\w*)(?=\s*(?:[(:]|=[^=]))", re.MULTILINE)
_OF_TUPLES = {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}
_BY_NAME = {"getattr", "hasattr", "setattr", "delattr"}
_ROW = re.compile(r"^\| `([^`]+)` \| .* \| ([\d.]+) \|$", re.MULTILINE)


@cache
def _private_to_spark() -> frozenset[str]:
    """Return the names with one underscore that PySpark and py4j define."""
    found: set[str] = set()
    for package in ("pyspark", "py4j"):
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        for path in Path(spec.origin).parent.rglob("*.py"):
            found.update(_DEFINED.findall(path.read_text(encoding="utf-8")))
    assert {"_jvm", "_jsc", "_jsparkSession", "_gateway", "_ensure_initialized"} <= found
    return frozenset(found - _OF_TUPLES)


def _uses(module: Module) -> Iterator[tuple[int, str]]:
    own = frozenset(_DEFINED.findall(module.text))
    names = _private_to_spark() - own if _may_hold_spark(module) else frozenset[str]()
    return _used(_without_docstrings(module), names)


def _may_hold_spark(module: Module) -> bool:
    """Whether a module may have objects of Spark: only the pipeline makes them, and only the command line calls it."""
    return not module.name.startswith("src/driftq/") or module.name.split("/")[2] in ("pipeline", "cli")


def _used(tree: ast.Module, names: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield line and name of each use of a private name. `names` are the attributes that count as private."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if _is_private_module(alias.name))
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in ("pyspark", "py4j"):
            yield from ((node.lineno, name) for name in _imported(node.module, node))
        elif isinstance(node, ast.Attribute) and not _is_own(node.value) and node.attr in names:
            yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _BY_NAME:
            name = node.args[1].value if len(node.args) > 1 and isinstance(node.args[1], ast.Constant) else None
            if isinstance(name, str) and name in names:
                yield node.lineno, name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from ((node.lineno, name) for name in _in_string(node.value))


def _imported(module: str, node: ast.ImportFrom) -> Iterator[str]:
    for alias in node.names:
        name = f"{module}.{alias.name}"
        if module not in _PUBLIC or alias.name.startswith("_") or _is_private_submodule(name):
            yield name


def _is_private_submodule(name: str) -> bool:
    try:
        return find_spec(name) is not None and _is_private_module(name)
    except ModuleNotFoundError:  # its parent is a module without submodules
        return False


def _is_private_module(name: str) -> bool:
    return name.partition(".")[0] in ("pyspark", "py4j") and name not in _PUBLIC


def _in_string(text: str) -> Iterator[str]:
    if _MODULE.fullmatch(text) and _is_private_module(text):
        yield text
    for pattern in _STRINGS:
        yield from pattern.findall(text)


def _is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _without_docstrings(module: Module) -> ast.Module:
    """Return a copy of the tree without strings that are statements."""
    tree = ast.parse(module.text)
    for node in ast.walk(tree):
        for body in (getattr(node, field, None) for field in ("body", "orelse", "finalbody")):
            if isinstance(body, list):
                body[:] = [s for s in body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    return tree


def _names_in_fence() -> set[str]:
    return {name for module in modules("src") if module.name.startswith(_FENCE) for _, name in _uses(module)}


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("from py4j.protocol import Py4JError", ["py4j.protocol.Py4JError"]),
        ("import pyspark.daemon", ["pyspark.daemon"]),
        ("from pyspark import cloudpickle, TaskContext", ["pyspark.cloudpickle"]),
        ("from pyspark.sql.functions import _invoke_function", ["pyspark.sql.functions._invoke_function"]),
        ("import_module('pyspark.testing.utils')", ["pyspark.testing.utils"]),
        ("spark._jvm.x()", ["_jvm"]),
        ("hasattr(spark, '_jsparkSession')", ["_jsparkSession"]),
        ("{'_PYSPARK_DRIVER_CONN_INFO_PATH': place}", ["_PYSPARK_DRIVER_CONN_INFO_PATH"]),
        ("['org.apache.spark.deploy.SparkSubmit']", ["org.apache.spark.deploy.SparkSubmit"]),
        ("from pyspark.sql import SparkSession\nspark.conf.get('spark.master'); self._jvm", []),
    ],
)
def test_each_kind_of_private_name_is_found(code: str, names: list[str]) -> None:
    assert [name for _, name in _used(ast.parse(code), _private_to_spark())] == names


@pytest.mark.parametrize("top", ["src", "bench", "tools", "examples"])
def test_private_names_of_spark_are_used_in_one_package(top: str) -> None:
    outside = [
        f"{module.name}:{line}: {name}"
        for module in modules(top)
        if not module.name.startswith(_FENCE)
        for line, name in _uses(module)
    ]
    assert not outside, "\n".join(outside)


def test_the_table_lists_every_private_name_and_the_spark_it_was_checked_with() -> None:
    rows = _ROW.findall(pages()["docs/architecture.md"].partition("## Private names of Spark")[2])
    listed = [name for name, _ in rows]
    assert sorted(listed) == sorted(_names_in_fence())
    assert {checked for _, checked in rows} == {version("pyspark")}, "check each name with this Spark, then update"
