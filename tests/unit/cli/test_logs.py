"""The log's level."""

import logging

import pytest

from driftq.cli.logs import start_log


@pytest.mark.parametrize(
    ("level", "wanted"), [("debug", logging.DEBUG), ("WARN", logging.WARNING), ("driftq=trace", logging.INFO)]
)
def test_a_level_nobody_knows_is_info(level: str, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.Logger("root")
    monkeypatch.setattr(logging, "root", root)
    start_log(level)
    assert root.level == wanted
