"""Class-data archives: which fit, how a JVM uses and records them, and that they may be missing."""

import os
from pathlib import Path

import pytest

from driftq.pipeline.spark.class_data import ClassData, class_data_of
from driftq.pipeline.spark.java import Java

OPTIONS = ("-XX:+UseSerialGC", "--add-opens=java.base/java.io=ALL-UNNAMED")
DUMPS = """#!/bin/sh
for argument do case $argument in -XX:SharedArchiveFile=*) echo "$@" > "${argument#*=}" ;; esac; done
"""


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    """One without an archive of its own; asked to dump one it writes down how it was asked."""
    monkeypatch.setenv("DRIFTQ_CACHE_DIR", str(tmp_path / "cache"))
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "lib" / "server").mkdir(parents=True)
    (home / "release").write_text('JAVA_VERSION="25.0.2"\n', encoding="utf-8")
    (home / "bin" / "java").write_text(DUMPS, encoding="utf-8")
    (home / "bin" / "java").chmod(0o755)
    return Java(home, 25, bundled=True)


@pytest.fixture
def complete(java: Java) -> Java:
    """The same with an archive of its own classes."""
    (java.home / "lib" / "server" / "classes.jsa").touch()
    return java


def recorded(archives: ClassData) -> Path:
    """Where a JVM is to leave its archive."""
    part = archives.place_to_record()
    assert part is not None
    return part


def test_spark_is_recorded_on_top_of_what_java_has(complete: Java) -> None:
    archives = class_data_of(complete, [], OPTIONS)
    part = recorded(archives)
    assert archives.recording(part) == [f"-XX:ArchiveClassesAtExit={part}"]
    assert archives.using() == []
    part.touch()
    part.replace(archives.spark)
    assert archives.using() == [f"-XX:SharedArchiveFile={archives.spark}"]
    assert archives.place_to_record() is None


def test_a_java_without_an_archive_gets_one_with_the_options_that_it_will_have(java: Java) -> None:
    archives = class_data_of(java, [], OPTIONS)
    assert archives.base is not None
    part = recorded(archives)
    assert archives.recording(part) == [f"-XX:SharedArchiveFile={archives.base}", f"-XX:ArchiveClassesAtExit={part}"]
    asked = archives.base.read_text(encoding="utf-8").split()
    assert {*OPTIONS, "-Xshare:dump"} <= set(asked)
    archives.spark.touch()
    assert archives.using() == [f"-XX:SharedArchiveFile={archives.base}:{archives.spark}"]


def test_without_the_layer_below_the_one_above_is_not_used(java: Java) -> None:
    archives = class_data_of(java, [], OPTIONS)
    recorded(archives)
    archives.spark.touch()
    assert archives.using() == []


def test_a_java_that_cannot_dump_runs_without(java: Java) -> None:
    java.command.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    archives = class_data_of(java, [], OPTIONS)
    assert archives.recording(recorded(archives)) == []
    assert list(archives.spark.parent.iterdir()) == []


def test_nothing_is_recorded_where_nothing_can_be_kept(
    complete: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DRIFTQ_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert class_data_of(complete, [], OPTIONS).place_to_record() is None


def test_another_jar_java_or_option_means_another_archive(complete: Java, tmp_path: Path) -> None:
    jar = tmp_path / "a.jar"
    jar.write_bytes(b"1")
    first = class_data_of(complete, [jar], OPTIONS).spark
    assert class_data_of(complete, [jar], OPTIONS).spark == first
    assert class_data_of(complete, [jar], OPTIONS[:1]).spark != first
    jar.write_bytes(b"22")
    assert class_data_of(complete, [jar], OPTIONS).spark != first
    jar.write_bytes(b"1")
    (complete.home / "release").write_text('JAVA_VERSION="25.0.3"\n', encoding="utf-8")
    assert class_data_of(complete, [jar], OPTIONS).spark != first


def test_an_archive_that_was_not_put_into_place_is_removed(complete: Java) -> None:
    archives = class_data_of(complete, [], OPTIONS)
    cache = recorded(archives).parent
    empty, old, fresh = (cache / f"spark-{name}.part" for name in ("1", "2", "3"))
    for part in (old, fresh):
        part.write_bytes(b"classes")
    empty.touch()
    os.utime(old, (1, 1))
    recorded(archives)
    assert [part.exists() for part in (empty, old, fresh)] == [False, False, True]
