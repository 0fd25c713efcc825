"""`driftq help` shows the help of any command and the exit codes; `driftq completion` prints shell completions."""

import os
from enum import StrEnum
from typing import Annotated, Any

import typer

from driftq.cli.commands import make_app
from driftq.cli.exits import MEANINGS, CommandError, ExitCode
from driftq.cli.output import Json, show_rows


class Shell(StrEnum):
    """Shells that completions can be printed for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="Shell to print completions for.")],
) -> None:
    """Print the completions for a shell.

    bash: driftq completion bash > ~/.local/share/bash-completion/completions/driftq

    zsh: driftq completion zsh > a directory of $fpath, as _driftq

    fish: driftq completion fish > ~/.config/fish/completions/driftq.fish
    """
    os.environ["_DRIFTQ_COMPLETE"] = f"source_{shell.value}"
    typer.main.get_command(make_app(completing=True)).main([], prog_name="driftq")


_EXIT_CODES = "exit-codes"


def manual(
    context: typer.Context,
    subject: Annotated[list[str] | None, typer.Argument(help=f"A command, or `{_EXIT_CODES}`.")] = None,
    *,
    as_json: Json = False,
) -> None:
    """Show the help of a command, or what the exit codes mean: `driftq help topic create`, `driftq help exit-codes`."""
    if subject == [_EXIT_CODES]:
        show_rows([{"code": int(code), "meaning": meaning} for code, meaning in MEANINGS.items()], as_json=as_json)
        return
    typer.echo(_help_of(context.find_root(), subject or []))


def _help_of(context: Any, path: list[str]) -> str:
    """Return the help of the command that a list of names leads to."""
    for at, name in enumerate(path):
        resolve = getattr(context.command, "resolve_command", None)
        if resolve is None:
            raise CommandError(f"`{' '.join(path[:at])}` has no commands; see driftq --help", ExitCode.USAGE)
        _, command, _ = resolve(context, [name])
        context = type(context)(command, info_name=name, parent=context)
    return str(context.get_help())
