"""What is printed: the same fields for people and programs, and nothing drawn where nobody looks."""

import io
import sys

import pytest
from msgspec import json

from driftq.cli.exits import CommandError, ExitCode
from driftq.cli.output import confirm, note, print_line, printable, progress, readable, show, show_rows, size
from tests.support.command_line import at_a_terminal

ROWS = [{"topic": "a", "count": 1, "bytes": 2048, "more": None}, {"topic": "[b]", "count": 22, "bytes": 1}]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_and_its_json_have_the_same_fields(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    show_rows(ROWS, as_json=False)
    drawn = capfdbinary.readouterr().out.decode().splitlines()
    show_rows(ROWS, as_json=True)
    told = json.decode(capfdbinary.readouterr().out)
    assert drawn[0].split() == list(told[0]) == ["topic", "count", "bytes", "more"]
    assert [line.split() for line in drawn[1:]] == [["a", "1", "2.0", "KiB", "-"], ["[b]", "22", "1", "B", "-"]]
    assert told[1] == {"topic": "[b]", "count": 22, "bytes": 1, "more": None}


def test_fields_are_chosen_and_ordered(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    show_rows(ROWS, ["count", "topic"], as_json=False)
    assert capfdbinary.readouterr().out.decode().splitlines()[0].split() == ["count", "topic"]


def test_an_empty_list_is_an_empty_list(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    show_rows([], ["topic"], as_json=True)
    assert json.decode(capfdbinary.readouterr().out) == []
    show_rows([], ["topic"], as_json=False)
    assert capfdbinary.readouterr().out == b""


def test_one_thing_has_a_line_for_each_field(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    facts = {"topic": "a", "config": {"ttl_ms": 5}, "durable": False}
    show(facts, as_json=False)
    assert [line.split() for line in capfdbinary.readouterr().out.decode().splitlines()] == [
        ["topic", "a"],
        ["config.ttl_ms", "5"],
        ["durable", "no"],
    ]
    show(facts, as_json=True)
    assert json.decode(capfdbinary.readouterr().out) == facts


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("$ts", 0, "0"),
        ("last_write_ts", 1_700_000_000_123, "2023-11-14 22:13:20.123Z"),
        ("ms", 1234.5, "1,234.5"),
        ("ms", 2.0, "2"),
        ("any", True, "yes"),
        ("any", None, "-"),
        ("any", [1], "[1]"),
    ],
)
def test_values_are_readable(field: str, value: object, wanted: str) -> None:
    assert readable(field, value) == wanted


def test_sizes_have_units() -> None:
    assert [size(value) for value in (0, 1023, 1024, 5 << 30, 3 << 50)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 GiB",
        "3072.0 TiB",
    ]


def test_a_stream_is_a_line_each(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    print_line({"a": 1})
    print_line([2])
    assert capfdbinary.readouterr().out == b'{"a":1}\n[2]\n'


def test_nobody_is_asked_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(CommandError, match="--yes") as refused:
        confirm("Delete?", yes=False)
    assert refused.value.code == ExitCode.USAGE
    confirm("Delete?", yes=True)


def test_who_says_no_at_a_terminal_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", _Terminal())
    monkeypatch.setattr(sys, "stderr", _Terminal())
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    with pytest.raises(CommandError, match="nothing was changed"):
        confirm("Delete?", yes=False)


def test_no_bar_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("working", 10) as tell:
        tell(5)
    assert capsys.readouterr().err == ""


def test_a_bar_at_a_terminal() -> None:
    story = "from driftq.cli.output import progress\nwith progress('working', 10) as tell: tell(5); tell(10)"
    code, seen = at_a_terminal(["-c", story])
    assert code == 0
    assert "working" in seen
    assert "10/10" in seen


HOSTILE = "red\x1b[31m \x9b2J \x07 \r over \u202e right"


def test_no_output_can_command_a_terminal(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tag, a group or an error from a server may contain anything."""
    show_rows([{"topic": HOSTILE, "config": {"a": HOSTILE}}], as_json=False)
    show({"topic": HOSTILE}, as_json=False)
    note(f"server says {HOSTILE}\nsecond line")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_line({"tag": HOSTILE})
    out, err = capfdbinary.readouterr()
    printed = (out + err).decode()
    assert {char for char in printed if not char.isprintable()} == {"\n"}
    assert "\\u001b[31m" in printed
    assert "second line\n" in err.decode()
    assert json.decode(out.splitlines()[-1]) == {"tag": HOSTILE}


def test_other_programs_get_the_text_as_it_is(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    print_line({"tag": "Grüße \x9b"})
    assert capfdbinary.readouterr().out.decode() == '{"tag":"Grüße \x9b"}\n'


def test_ordinary_text_of_any_language_is_printed_as_it_is() -> None:
    for text in ("Grüße", "日本語", "naïve café", "emoji 👩‍🚀", "a\\b"):
        assert printable(text) == text
