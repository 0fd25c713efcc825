"""What a route is told to do, without a JVM."""

from pathlib import Path

import pytest

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs.route_job import RouteOptions, as_records, transform_directory, transform_of
from driftq.pipeline.runs.user_code import importing_from


class _Frame:
    """Looks like a DataFrame."""

    writeStream = None  # noqa: N815  # Spark's name


def route(**more: str) -> RouteOptions:
    return RouteOptions(topics=["a"], to="b", **more)  # type: ignore[arg-type]


def test_a_function_of_a_file_is_the_transform(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def same(rows):\n    return rows\ndef none(rows):\n    return None\n", encoding="utf-8")
    frame = _Frame()
    found: object = transform_of(route(transform=f"{file}:same"))(frame)  # type: ignore[arg-type]
    assert found is frame
    with pytest.raises(PipelineError, match="must return a DataFrame, but returned NoneType"):
        transform_of(route(transform=f"{file}:none"))(frame)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "either --sql or --transform"),
        ({"sql": "SELECT 1", "transform": "m:f"}, "either --sql or --transform"),
        ({"transform": "mine.py"}, "does not name a function"),
        ({"transform": "absent_file.py:f"}, "there is no file"),
        ({"transform": "absent_module_of_nobody:f"}, "cannot be imported"),
        ({"transform": "json:no_such"}, "has no function 'no_such'"),
    ],
)
def test_a_route_without_one_thing_to_do_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        transform_of(route(**given))


class _Columns(_Frame):
    def __init__(self, *columns: str) -> None:
        self.columns = columns


def test_rows_with_data_are_written_as_they_are_and_no_column_is_no_record() -> None:
    rows = _Columns("tag", "data", "more")
    given: object = as_records(rows)  # type: ignore[arg-type]
    assert given is rows
    with pytest.raises(PipelineError, match="no column `data`"):
        as_records(_Columns("tag", "node"))  # type: ignore[arg-type]


def test_a_transform_in_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "steps_of_nobody.py").write_text("def same(rows):\n    return rows\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    options = route(transform="steps_of_nobody:same")
    frame = _Frame()
    with importing_from(transform_directory(options.transform)):
        found: object = transform_of(options)(frame)  # type: ignore[arg-type]
    assert found is frame
