"""The files of the repository, read once: what every tidy test looks at."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Module:
    """One Python file, parsed."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def modules(top: str) -> tuple[Module, ...]:
    """Every Python file below a directory of the repository."""
    return tuple(_module(path) for path in sorted((ROOT / top).rglob("*.py")))


def _module(path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    return Module(path, text, ast.parse(text))


def functions(module: Module) -> Iterator[Function]:
    """Every function, nested ones and methods too."""
    return (node for node in ast.walk(module.tree) if isinstance(node, Function))


@cache
def texts() -> dict[str, str]:
    """Every text file that is, or would be, under version control, by its name."""
    found: dict[str, str] = {}
    for path in _walk(ROOT):
        raw = path.read_bytes()
        if b"\0" not in raw:
            found[str(path.relative_to(ROOT))] = raw.decode("utf-8", errors="replace")
    return found


def _walk(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        if path.name == ".git" or any(fnmatch(path.name, pattern) for pattern in _ignored()):
            continue
        if path.is_dir():
            yield from _walk(path)
        elif path.is_file():
            yield path


@cache
def _ignored() -> list[str]:
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").split("\n")
    patterns = [line.rstrip("/") for line in lines if line and not line.startswith("#")]
    assert not [pattern for pattern in patterns if "/" in pattern], ".gitignore: plain names only, for this walk"
    return patterns


def pages() -> dict[str, str]:
    """The documentation, by name, without what stands in code fences."""
    return {
        name: re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        for name, text in texts().items()
        if name.endswith(".md")
    }
