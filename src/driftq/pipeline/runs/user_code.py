"""Runs user code inside a pipeline: it can import modules from its own directory, and errors name file and line.

Modules in the directory of a file are imported as `python FILE.py` would import them. Executors do not have these
files, so the modules are pickled by value from the moment they are imported.

Invariant: when the run ends, these modules are removed from `sys.modules`. Another file may have different modules with
the same names in its directory.
"""

import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from driftq.client import ClientError
from driftq.errors import DriftQError
from driftq.pipeline.errors import PipelineError
from driftq.pipeline.spark.failures import in_one_line
from driftq.pipeline.spark.session_internals import pickle_by_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NOT_THEIRS = (
    *(Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")),
    Path(__file__).parents[2],
)


class _ByValue(SourceFileLoader):
    """Loads a module and registers it to be pickled by value."""

    def exec_module(self, module: ModuleType) -> None:
        pickle_by_value(module)  # before it runs, because it may itself pass functions to Spark
        super().exec_module(module)


class _Beside:
    """Import finder for the modules and packages of one directory, asked before all others; includes submodules."""

    def __init__(self, directory: Path) -> None:
        self._finder = FileFinder(str(directory), (_ByValue, SOURCE_SUFFIXES))
        self._found: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a module in the directory, as Python's import system asks for it."""
        spec = self._finder.find_spec(name) if path is None else None
        if spec is None or spec.loader is None:
            return None
        self._found.add(name)
        return spec

    def forget(self) -> None:
        """Remove the modules that were found, so that the next import loads them again."""
        for name in [name for name in sys.modules if name.partition(".")[0] in self._found]:
            del sys.modules[name]


@contextmanager
def importing_from(directory: Path) -> Iterator[None]:
    """Make modules of this directory importable inside the `with` block."""
    beside = _Beside(directory)
    sys.meta_path.insert(0, beside)
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        sys.meta_path.remove(beside)
        with suppress(ValueError):
            sys.path.remove(str(directory))
        beside.forget()


@contextmanager
def told_by_line(directory: Path) -> Iterator[None]:
    """Turn an error of code in this directory into one line, with the file and the line that raised it."""
    try:
        yield
    except (DriftQError, ClientError):
        raise
    except Exception as error:
        mended = in_one_line(error)
        words = str(mended) if mended is not error else f"{type(error).__name__}: {_first_line(error)}"
        raise PipelineError(f"{_place(error, directory)}{words}") from error


def frame_of(given: Any, what: str) -> "DataFrame":
    """Return the result of a user's function if it is a DataFrame. Raises PipelineError if it is not."""
    if not hasattr(given, "writeStream"):
        raise PipelineError(f"{what} must return a DataFrame, but returned {type(given).__name__}")
    frame: DataFrame = given
    return frame


def _first_line(error: Exception) -> str:
    told = error.msg if isinstance(error, SyntaxError) else str(error)
    return told.strip().partition("\n")[0]


def _place(error: Exception, directory: Path) -> str:
    """Return `file:line: ` of the innermost call in the user's code, or nothing."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: "
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_theirs(frame.filename, directory)]
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""


def _is_theirs(name: str, directory: Path) -> bool:
    """Whether a file is user code. Installed packages and DriftQ itself may be below the directory, but are not."""
    path = Path(name).absolute()
    installed = any(path.is_relative_to(place) for place in _NOT_THEIRS)
    return not name.startswith("<") and path.is_relative_to(directory) and not installed
