"""What a route is told to do, without a JVM."""

from pathlib import Path

import pytest

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs.route import RouteOptions, transform_of


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
    with pytest.raises(PipelineError, match="has to return a DataFrame, and gave NoneType"):
        transform_of(route(transform=f"{file}:none"))(frame)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "either --sql or --transform"),
        ({"sql": "SELECT 1", "transform": "m:f"}, "either --sql or --transform"),
        ({"transform": "mine.py"}, "names no function"),
        ({"transform": "absent_file.py:f"}, "there is no file"),
        ({"transform": "absent_module_of_nobody:f"}, "cannot be imported"),
        ({"transform": "json:no_such"}, "has no function 'no_such'"),
    ],
)
def test_a_route_without_one_thing_to_do_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        transform_of(route(**given))
