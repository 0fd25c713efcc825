"""What every command stands in: groups that load their commands when they are asked for, and one way to end.

`driftq --help` names a dozen commands whose modules import a server, a client or Spark, and has a quarter of a second:
so a table holds their names, sections and help texts, and only the one command that was asked for is imported. Help is
plain text, because the imports of a drawn one take longer than everything else together.

Whatever a command raises ends it in `run`, in one line on standard error that begins with `driftq: `.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from driftq.cli.exits import EXIT_CODES, CommandError, ExitCode
from driftq.errors import DriftQError


class CommandEntry(NamedTuple):
    """One command or group: where it stands in the help, what it is (`module:name`) and what it does."""

    section: str
    target: str
    help: str


class CommandGroup(TyperGroup):
    """A group of commands. Without a command it shows its help, and that is wrong usage."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Show the help to who names no command."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            ctx.exit(ExitCode.USAGE)
        return super().parse_args(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command whose help ends with the exit codes."""
        found = super().get_command(ctx, cmd_name)
        if found is not None and not found.epilog:
            found.epilog = EXIT_CODES
        return found


class LazyGroup(CommandGroup):
    """The commands of a table: listed as the table says, imported when one is called."""

    table: ClassVar[Mapping[str, CommandEntry]] = {}

    def __init__(self, **attributes: Any) -> None:
        """Begin with what is known of the commands without importing them: enough to list and to complete them."""
        super().__init__(**attributes)
        for name, entry in self.table.items():
            self.add_command(TyperCommand(name, help=entry.help, rich_markup_mode=None))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command itself."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and load(name or "", self.table[name or ""]), rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """By section."""
        for section in dict.fromkeys(entry.section for entry in self.table.values()):
            with formatter.section(section):
                formatter.write_dl(
                    [(name, entry.help) for name, entry in self.table.items() if entry.section == section]
                )


def group(help_text: str) -> typer.Typer:
    """A group of commands, to be filled with `@group.command("name")`."""
    return commands_of(CommandGroup, _nothing_of_its_own, help_text)


def commands_of(
    cls: type[CommandGroup], callback: Callable[..., None], help_text: str, *, completing: bool = False
) -> typer.Typer:
    """Commands as all of ours are: help is plain, `-h` is help, and what a shell needs is imported where one asks."""
    return typer.Typer(
        cls=cls,
        callback=callback,
        help=help_text,
        epilog=EXIT_CODES,
        add_completion=completing,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _nothing_of_its_own() -> None:
    """Make a group of a group that has one command."""


def load(name: str, entry: CommandEntry) -> Any:
    """Import a command or a group, ready to be called."""
    module, _, attribute = entry.target.partition(":")
    found = getattr(import_module(module), attribute)
    app = found
    if not isinstance(found, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        app.command(name, context_settings={"help_option_names": ["-h", "--help"]})(found)
    command = typer.main.get_command(app)
    command.name = name
    command.epilog = command.epilog or EXIT_CODES
    return command


def run(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run the command that was asked for; the exit code."""
    try:
        code = typer.main.get_command(app).main(list(arguments), prog_name="driftq", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return ExitCode.FAILED
    except CommandError as error:
        return _end(error.message, error.code)
    except DriftQError as error:
        return _end(error.message, ExitCode.FAILED)
    except typer.TyperException as error:
        return _end(_usage(error), error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return _end("interrupted", ExitCode.INTERRUPTED)
    except OSError as error:
        _drop_output()
        where = "" if error.filename is None else f"{error.filename}: "
        return _end(f"{where}{error.strerror or error}", ExitCode.FAILED)
    return code if isinstance(code, int) else ExitCode.OK


def _drop_output() -> None:
    """What is left to be flushed goes nowhere, if it cannot go where it should."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(message: str, code: int) -> int:
    sys.stderr.write(f"driftq: {' '.join(message.split())}\n")
    return code


def _usage(error: typer.TyperException) -> str:
    where = getattr(getattr(error, "ctx", None), "command_path", "driftq")
    said = error.format_message().rstrip(".")
    return f"{said[:1].lower()}{said[1:]}; see {where} --help"
