"""The page of the command line tells of every command, and of every exit code."""

from collections.abc import Iterator

from driftq.cli.commands import COMMANDS
from driftq.cli.exits import MEANINGS
from driftq.cli.lazy_groups import load
from tests.tidy.tree import texts


def _commands() -> Iterator[str]:
    for name, entry in COMMANDS.items():
        below = getattr(load(name, entry), "commands", {})
        yield from (f"{name} {one}" for one in below) if below else [name]


def test_every_command_stands_in_the_docs() -> None:
    missing = [command for command in _commands() if f"driftq {command}" not in texts()["docs/cli.md"]]
    assert not missing, f"say in docs/cli.md, with an example, what these commands of driftq do: {missing}"


def test_every_exit_code_stands_in_the_docs() -> None:
    rows = [f"| {int(code)} | {meaning} |" for code, meaning in MEANINGS.items()]
    assert not [row for row in rows if row not in texts()["docs/cli.md"]]
