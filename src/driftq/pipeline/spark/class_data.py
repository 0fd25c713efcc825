"""Class-data archives: a JVM maps the classes of an earlier run instead of loading and checking each one again.

There are two layers. The archive of Java's own classes comes with most Javas; for one without it (the wheel's), it is
made once, in less than a second. The archive of Spark's classes, about 180 MB, is recorded on top of the first one by a
JVM when it ends. Both work only with the exact Java, jars and options they were made with. They are in the cache
directory, under names that contain a hash of these, and are renamed into place when complete. Without them everything
works, but starts slowly.
"""

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from driftq.pipeline.spark.java import Java, cache_dir

_BASE_PATIENCE_S = 120.0
_ABANDONED_S = 3600.0


class ClassData(NamedTuple):
    """The archives of one Java with certain jars and options. The files may or may not exist."""

    java: Java
    options: tuple[str, ...]
    """The options that an archive depends on: garbage collector and modules."""
    base: Path | None
    """Archive of Java's own classes. None if Java has one itself."""
    spark: Path

    def using(self) -> list[str]:
        """Return the options of a JVM that maps the archives, or none if an archive is missing."""
        if not self.spark.exists() or (self.base is not None and not self.base.exists()):
            return []
        layers = [*([] if self.base is None else [self.base]), self.spark]
        return [f"-XX:SharedArchiveFile={os.pathsep.join(map(str, layers))}"]

    def recording(self, part: Path) -> list[str]:
        """Return the options of a JVM that records Spark's classes at exit; makes the base archive if it is missing."""
        if self.base is None:
            return [f"-XX:ArchiveClassesAtExit={part}"]
        if not self.base.exists() and not self._dumped(self.base):
            return []
        return [f"-XX:SharedArchiveFile={self.base}", f"-XX:ArchiveClassesAtExit={part}"]

    def place_to_record(self) -> Path | None:
        """Return a path for an archive to record. None if there is an archive already or the cache is not writable."""
        if self.using():
            return None
        try:
            self.spark.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        _remove_abandoned(self.spark.parent)
        return _part(self.spark) if os.access(self.spark.parent, os.W_OK) else None

    def _dumped(self, base: Path) -> bool:
        """Make the archive of Java's own classes. Returns False if that fails."""
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
    """Return the archives for exactly this Java with these jars and options."""
    release = java.home / "release"
    said = [str(java.home), release.read_text(encoding="utf-8") if release.exists() else "", *options]
    base = None if (java.home / "lib" / "server" / "classes.jsa").exists() else _named("java", said)
    said += [f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in jars]
    return ClassData(java, tuple(options), base, _named("spark", said))


def _named(what: str, said: Sequence[str]) -> Path:
    return cache_dir() / f"{what}-{sha256(chr(10).join(said).encode()).hexdigest()[:16]}.jsa"


def _remove_abandoned(directory: Path) -> None:
    """Remove archives that were never put into place: empty ones, and those that nothing has written to for an hour."""
    for part in directory.glob("*.part"):
        with suppress(OSError):
            found = part.stat()
            if not found.st_size or time.time() - found.st_mtime > _ABANDONED_S:
                part.unlink()


def _part(archive: Path) -> Path:
    return archive.with_name(f"{archive.stem}.{os.getpid()}.part")
