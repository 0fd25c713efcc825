"""The log's level and form."""

import logging

import pytest
from msgspec import json

from driftq.cli.logs import JsonLines, start_log


@pytest.mark.parametrize(
    ("level", "wanted"), [("debug", logging.DEBUG), ("WARN", logging.WARNING), ("driftq=trace", logging.INFO)]
)
def test_a_level_nobody_knows_is_info(level: str, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.Logger("root")
    monkeypatch.setattr(logging, "root", root)
    start_log(level)
    assert root.level == wanted


def test_a_line_of_json_has_the_message_and_the_trace() -> None:
    error = ValueError("inside")
    info = (ValueError, error, None)
    record = logging.LogRecord("a.b", logging.ERROR, "", 0, "%s failed\nbadly", ("it",), info)
    line = JsonLines().format(record)
    found = json.decode(line)
    assert "\n" not in line
    assert (found["level"], found["logger"], found["message"]) == ("error", "a.b", "it failed\nbadly")
    assert "ValueError: inside" in found["trace"]
