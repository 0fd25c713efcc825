"""Which Java is taken, and what Spark's own scripts find."""

import subprocess
from pathlib import Path

import pytest

from driftq.pipeline import PipelineError
from driftq.pipeline.spark.java import Java, find_java, home_for_spark, version_of
from driftq.pipeline.spark.jvm import command


def _java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n', encoding="utf-8")
    return home


@pytest.mark.parametrize(("said", "version"), [("17.0.15", 17), ("25", 25), ("1.8.0_402", 8)])
def test_the_release_file_tells_the_version(tmp_path: Path, said: str, version: int) -> None:
    assert version_of(_java(tmp_path / "java", said)) == version


def test_java_home_goes_first_if_it_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, path = _java(tmp_path / "home", "21.0.1"), _java(tmp_path / "path", "17.0.1")
    monkeypatch.setenv("PATH", str(path / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == Java(home, 21, bundled=False)
    (home / "release").write_text('JAVA_VERSION="11.0.2"\n', encoding="utf-8")
    assert find_java() == Java(path, 17, bundled=False)


def test_without_a_java_the_wheel_brings_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    found = find_java()
    assert found.bundled
    assert found.version >= 17
    assert found.command.exists()


def test_without_any_java_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("driftq.pipeline.spark.java._bundled", lambda: None)
    with pytest.raises(PipelineError, match=r"install it, set JAVA_HOME, or use `pip install driftq\[spark\]`"):
        find_java()


def test_what_spark_starts_itself_finds_a_java_without_the_module_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIFTQ_CACHE_DIR", str(tmp_path / "cache"))
    bundled = Java(_java(tmp_path / "wheel", "25.0.2"), 25, bundled=True)
    shim = home_for_spark(bundled)
    said = subprocess.run(
        [shim / "bin" / "java", "-cp", "a b", "--add-modules=jdk.incubator.vector", "Main"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split("\n")[:-1] == ["-cp", "a b", "Main"]
    assert home_for_spark(bundled._replace(bundled=False)) == bundled.home


@pytest.mark.parametrize(("version", "opened"), [(17, True), (21, True), (25, False)])
def test_a_package_that_java_has_no_more_is_not_opened(tmp_path: Path, version: int, opened: bool) -> None:
    """It would print a warning."""
    line = command(Java(tmp_path, version, bundled=True), {}, short=True, class_data=["-XX:SharedArchiveFile=here"])
    assert any("sun.security.action" in option for option in line) == opened
    assert "-XX:SharedArchiveFile=here" in line
