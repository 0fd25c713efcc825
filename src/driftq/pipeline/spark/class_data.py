"""Class-data archives: what lets a JVM map the classes of an earlier run instead of loading and checking each again.

There are two layers. That of Java's own classes comes with most Javas; for one without (the wheel's) it is made once,
within a second. That of Spark's, about 180 MB, is recorded by a JVM on top of the first when it ends. Both are bound to
the exact Java, jars and options they were made with, are kept in the cache directory under a name that says so, and are
put in their place as a whole. Without them everything works and starts slowly.
"""

import os
import subprocess
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from driftq.pipeline.spark.java import Java, cache_dir

_BASE_PATIENCE_S = 120.0


class ClassData(NamedTuple):
    """The archives of one Java with these jars and options, whether they are there or not."""

    java: Java
    options: tuple[str, ...]
    """Those that an archive depends on: collector and modules."""
    base: Path | None
    """Java's own classes; None where Java has an archive of them itself."""
    spark: Path

    def using(self) -> list[str]:
        """The options of a JVM that maps what is there."""
        if not self.spark.exists() or (self.base is not None and not self.base.exists()):
            return []
        layers = [*([] if self.base is None else [self.base]), self.spark]
        return [f"-XX:SharedArchiveFile={os.pathsep.join(map(str, layers))}"]

    def recording(self, part: Path) -> list[str]:
        """The options of a JVM that records Spark's classes when it ends; makes the archive below if need be."""
        if self.base is None:
            return [f"-XX:ArchiveClassesAtExit={part}"]
        if not self.base.exists() and not self._dumped(self.base):
            return []
        return [f"-XX:SharedArchiveFile={self.base}", f"-XX:ArchiveClassesAtExit={part}"]

    def place_to_record(self) -> Path | None:
        """A name of its own for an archive under way; None where there is one already or nothing can be kept."""
        if self.using():
            return None
        try:
            self.spark.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        return _part(self.spark) if os.access(self.spark.parent, os.W_OK) else None

    def _dumped(self, base: Path) -> bool:
        """Make the archive of Java's own classes; False where that fails."""
        part = _part(base)
        options = ["-XX:+IgnoreUnrecognizedVMOptions", *self.options, "-Xshare:dump", f"-XX:SharedArchiveFile={part}"]
        try:
            subprocess.run([self.java.command, *options], check=True, capture_output=True, timeout=_BASE_PATIENCE_S)
            part.replace(base)
        except (OSError, subprocess.SubprocessError):
            part.unlink(missing_ok=True)
            return False
        return True


def class_data_of(java: Java, jars: Sequence[Path], options: Sequence[str]) -> ClassData:
    """The archives for exactly this Java with exactly these jars and options."""
    release = java.home / "release"
    said = [str(java.home), release.read_text(encoding="utf-8") if release.exists() else "", *options]
    base = None if (java.home / "lib" / "server" / "classes.jsa").exists() else _named("java", said)
    said += [f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in jars]
    return ClassData(java, tuple(options), base, _named("spark", said))


def _named(what: str, said: Sequence[str]) -> Path:
    return cache_dir() / f"{what}-{sha256(chr(10).join(said).encode()).hexdigest()[:16]}.jsa"


def _part(archive: Path) -> Path:
    return archive.with_name(f"{archive.stem}.{os.getpid()}.part")
