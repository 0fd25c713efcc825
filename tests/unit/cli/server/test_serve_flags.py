"""Flags: one for every setting, and an error of one line for a wrong one."""

import pytest

from driftq.cli.server.serve_flags import parse_flags
from driftq.config import OPTIONS, Settings, read_settings


def test_no_flag_says_nothing() -> None:
    assert parse_flags([]) == {}


def test_every_setting_has_a_flag_that_is_heard() -> None:
    arguments: list[str] = []
    for option in OPTIONS:
        value = "5000" if option.type is int else (*option.choices, "text")[0]
        arguments += [option.flag] if option.type is bool else [option.flag, value]
    given = parse_flags(arguments)
    assert sorted(given) == sorted(option.field for option in OPTIONS)
    settings = read_settings({}, given)
    assert (settings.port, settings.data_dir, settings.probe_auth) == (5000, "text", True)
    assert settings.limits.topics_max == 5000
    assert settings != Settings()


def test_a_switch_can_be_turned_off() -> None:
    assert parse_flags(["--no-probe-auth"]) == {"probe_auth": False}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--port", "65536"], "--port"),
        (["--port=-1"], "--port"),
        (["--wal-shards", "0"], "--wal-shards"),
        (["--wal-file-bytes", "2147483649"], "at least 4096 and at most 2147483648"),
        (["--max-topics", "many"], "--max-topics"),
        (["--data", "x"], "--data"),
        (["--port"], "--port"),
        (["surplus"], "surplus"),
    ],
)
def test_a_wrong_flag_is_one_line_and_exit_code_2(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        parse_flags(arguments)
    said = capsys.readouterr()
    assert (refused.value.code, said.out) == (2, "")
    assert named in said.err
    assert said.err.count("\n") == 1


def test_help_names_every_flag_its_default_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_flags(["--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(option.flag in shown for option in OPTIONS)
    assert "[10000]" in shown
    assert "Exit codes: 0" in shown
