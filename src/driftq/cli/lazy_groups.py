"""Groups of commands that import a command only when it is called, and the function that runs one.

`driftq --help` lists commands whose modules import a server, a client or Spark, and must answer within 250 ms. So a
table holds names, sections and help texts, and only the called command is imported. Help is plain text, because
importing the library that draws formatted help takes longer than everything else together.

`run` turns every error of a command into one line on standard error that starts with `driftq: `.
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
    """One command or group: its section of the help, its location (`module:name`) and what it does."""

    section: str
    target: str
    help: str


class CommandGroup(TyperGroup):
    """A group of commands. Called without a command it prints its help and exits with code 2 (wrong usage)."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Print the help and exit with code 2 if no command is given."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            ctx.exit(ExitCode.USAGE)
        return super().parse_args(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command, with the exit codes at the end of its help."""
        found = super().get_command(ctx, cmd_name)
        if found is not None and not found.epilog:
            found.epilog = EXIT_CODES
        return found


class LazyGroup(CommandGroup):
    """A group that lists the commands of `table` and imports one only when it is called."""

    table: ClassVar[Mapping[str, CommandEntry]] = {}

    def __init__(self, **attributes: Any) -> None:
        """Add a placeholder for every command: enough to list and complete them without an import."""
        super().__init__(**attributes)
        for name, entry in self.table.items():
            self.add_command(TyperCommand(name, help=entry.help, rich_markup_mode=None))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the real command; this imports it."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and load(name or "", self.table[name or ""]), rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands to the help, by section."""
        for section in dict.fromkeys(entry.section for entry in self.table.values()):
            with formatter.section(section):
                formatter.write_dl(
                    [(name, entry.help) for name, entry in self.table.items() if entry.section == section]
                )


def group(help_text: str) -> typer.Typer:
    """Return an empty group of commands; fill it with `@group.command("name")`."""
    return commands_of(CommandGroup, _nothing_of_its_own, help_text)


def commands_of(
    cls: type[CommandGroup], callback: Callable[..., None], help_text: str, *, completing: bool = False
) -> typer.Typer:
    """Return a Typer app with the settings that all our groups share: plain help, `-h`, completion only on request."""
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
    """Do nothing. Typer needs a callback to treat an app with one command as a group."""


def load(name: str, entry: CommandEntry) -> Any:
    """Import a command or a group and return it ready to be called."""
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
    """Run the command that `arguments` name and return the exit code."""
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
    """Discard unflushed output if standard output cannot be written; otherwise Python fails again at exit."""
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
