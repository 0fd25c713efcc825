"""The frame of the commands: one table, one way to end, and no import before it is needed."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
import typer

from driftq.cli import commands
from driftq.cli import lazy_groups as frame
from driftq.cli.commands import COMMANDS, make_app
from driftq.cli.exits import EXIT_CODES, MEANINGS, CommandError, ExitCode
from driftq.cli.lazy_groups import CommandEntry, LazyGroup, group, load, run
from driftq.errors import StartError


class _Told(LazyGroup):
    table: ClassVar = {
        "refuses": CommandEntry("Ends", f"{__name__}:refuses", "Refuse."),
        "fails": CommandEntry("Ends", f"{__name__}:fails", "Fail."),
        "stops": CommandEntry("Ends", f"{__name__}:stops", "Be interrupted."),
        "breaks": CommandEntry("Ends", f"{__name__}:breaks", "Meet a full disk."),
        "ends": CommandEntry("Ends", f"{__name__}:ends", "End with a code."),
        "many": CommandEntry("Groups", f"{__name__}:many", "A group."),
        "gone": CommandEntry("Groups", "no.such.module:nothing", "What cannot be imported."),
    }


many = group("A group.")


@many.command("one")
def one(number: int) -> None:
    """Say a number."""
    typer.echo(number)


def refuses() -> None:
    raise CommandError("it is not there;\n  look elsewhere", ExitCode.ABSENT)


def fails() -> None:
    raise StartError("the disk is on fire")


def stops() -> None:
    raise KeyboardInterrupt


def breaks() -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "out.txt")


def ends() -> None:
    raise typer.Exit(ExitCode.DAMAGED)


APP = typer.Typer(cls=_Told, callback=lambda: None, add_completion=False, rich_markup_mode=None)
sys.modules.setdefault(__name__, sys.modules[one.__module__])


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["refuses"], 5, "driftq: it is not there; look elsewhere\n"),
        (["fails"], 1, "driftq: the disk is on fire\n"),
        (["breaks"], 1, "driftq: out.txt: No space left on device\n"),
        (["ends"], 7, ""),
        (["stops"], 130, ""),
        (["refuse"], 2, "driftq: no such command 'refuse'. Did you mean 'refuses'?; see driftq --help\n"),
        (["many", "one", "x"], 2, "driftq: invalid value for 'number'"),
        (["many", "one", "--no"], 2, "driftq: no such option: --no; see driftq many one --help\n"),
    ],
)
def test_every_end_has_its_code_and_at_most_one_line(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(APP, arguments) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(said)
    assert shown.err.count("\n") == (1 if said else 0)


def test_help_is_by_section_and_imports_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(APP, ["--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.index("Ends:") < shown.index("refuses") < shown.index("Groups:") < shown.index("gone")


def test_a_group_without_a_command_shows_its_help_and_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(APP, ["many"]) == 2
    assert "Say a number." in capsys.readouterr().err
    assert run(APP, ["many", "one", "7"]) == 0
    assert capsys.readouterr().out == "7\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_is_there_and_tells_its_exit_codes(name: str) -> None:
    command = load(name, COMMANDS[name])
    assert command.epilog == EXIT_CODES
    assert command.help
    for below in getattr(command, "commands", {}):
        assert command.get_command(None, below).epilog == EXIT_CODES


def test_the_exit_codes_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(make_app(), ["help", "exit-codes"]) == 0
    told = capsys.readouterr().out
    assert set(MEANINGS) == set(ExitCode)
    assert all(meaning in told for meaning in MEANINGS.values())


def test_help_of_a_command_is_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(make_app(), ["help", "import", "driftq-core"]) == 0
    assert capsys.readouterr().out.startswith("Usage: driftq import driftq-core")
    assert run(make_app(), ["help", "selfcheck", "more"]) == ExitCode.USAGE
    assert run(make_app(), ["help"]) == 0


def loaded_by(*arguments: str) -> set[str]:
    """The modules that a command imports, whatever comes of it."""
    command = [sys.executable, "-X", "importtime", "-m", "driftq", *arguments]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    return {line.rpartition("|")[2].strip() for line in said.stderr.splitlines()}


def test_a_command_that_asks_a_server_loads_no_command_line_of_others() -> None:
    loaded = loaded_by("topic", "ls", "--url", "http://127.0.0.1:1")
    assert {"httptools", "driftq.client"} <= loaded
    assert not loaded & {"httpx", "pygments", "rich.syntax"}


def test_the_frame_itself_loads_nothing_heavy() -> None:
    """`driftq --help` has a quarter of a second; any of these would take a good part of it."""
    loaded = loaded_by("--help")
    heavy = {"asyncio", "httpx", "msgspec", "numpy", "pandas", "pyarrow", "pyspark", "rich", "ssl", "uvloop"}
    assert frame.__name__ in loaded
    assert commands.__name__ in loaded
    assert not loaded & heavy
    assert not {name for name in loaded if name.startswith(("driftq.client", "driftq.config", "driftq.engine"))}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_are_printed_and_complete(shell: str) -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "driftq", "completion", shell], capture_output=True, text=True, check=True
    )
    assert "_DRIFTQ_COMPLETE" in printed.stdout


_COMPLETED = (
    ("driftq sel", "1", "selfcheck"),
    ("driftq import d", "2", "driftq-core"),
    ("driftq serve --wal-sh", "2", "--wal-shards"),
)


def test_a_command_is_completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for words, at, wanted in _COMPLETED:
        monkeypatch.setenv("_DRIFTQ_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", at)
        with pytest.raises(SystemExit) as ended:
            run(make_app(completing=True), [])
        assert ended.value.code == 0
        assert capsys.readouterr().out.split() == [wanted]


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_stream_that_is_closed_leads_nowhere(closed: int) -> None:
    """As some daemons start what they start."""
    command = [sys.executable, "-m", "driftq", "help", "exit-codes"]
    done = subprocess.run(
        command, preexec_fn=lambda: os.close(closed), capture_output=True, stdin=subprocess.DEVNULL, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_output_that_has_no_room_is_told_in_one_line() -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "driftq", "help", "exit-codes", "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"driftq: No space left on device\n")
