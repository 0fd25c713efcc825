"""Code of users: what it may import, how it travels, and how its mistakes are told."""

import sys
from importlib import import_module
from pathlib import Path

import pytest
from pyspark import cloudpickle

from driftq.client import TransportError
from driftq.pipeline.errors import AbsentError, PipelineError
from driftq.pipeline.runs.user_code import frame_of, importing_from, told_by_line


def test_a_module_beside_is_imported_travels_by_value_and_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / "beside_of_nobody.py").write_text("def two():\n    return 2\n", encoding="utf-8")
    with importing_from(tmp_path):
        travelling = cloudpickle.dumps(import_module("beside_of_nobody").two)
    assert "beside_of_nobody" not in sys.modules
    assert str(tmp_path) not in sys.path
    assert cloudpickle.loads(travelling)() == 2


def test_a_package_beside_travels_with_all_that_is_in_it(tmp_path: Path) -> None:
    package = tmp_path / "package_of_nobody"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "inner.py").write_text("def three():\n    return 3\n", encoding="utf-8")
    with importing_from(tmp_path):
        travelling = cloudpickle.dumps(import_module("package_of_nobody.inner").three)
    assert "package_of_nobody.inner" not in sys.modules
    assert cloudpickle.loads(travelling)() == 3


def test_two_directories_have_modules_of_the_same_name(tmp_path: Path) -> None:
    found = []
    for number in (1, 2):
        place = tmp_path / str(number)
        place.mkdir()
        (place / "same_of_nobody.py").write_text(f"NUMBER = {number}\n", encoding="utf-8")
        with importing_from(place):
            found.append(import_module("same_of_nobody").NUMBER)
    assert found == [1, 2]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import nothing_of_nobody\n", ":1: ModuleNotFoundError: No module named 'nothing_of_nobody'"),
        ("x = 1\ndef broken(:\n", ":2: invalid syntax"),
        ("import json\n\njson.loads('{')\n", ":3: JSONDecodeError: "),
    ],
)
def test_a_mistake_is_one_line_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "mistake_of_nobody.py"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(PipelineError) as raised, importing_from(tmp_path), told_by_line(tmp_path):
        import_module("mistake_of_nobody")
    assert str(raised.value).startswith(str(file))
    assert told.partition("invalid")[0] in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("error", [AbsentError("no topic"), TransportError("away", sent=False)])
def test_what_we_say_ourselves_stays_as_it_is(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)) as raised, told_by_line(tmp_path):
        raise error
    assert raised.value is error


def test_a_function_that_returns_no_rows_is_named() -> None:
    with pytest.raises(PipelineError, match="step 'a' must return a DataFrame, but returned NoneType"):
        frame_of(None, "step 'a'")
