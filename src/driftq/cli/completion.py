"""`driftq completion`: what a shell needs to complete the commands and options of `driftq`."""

import os
from enum import StrEnum
from typing import Annotated

import typer

from driftq.cli.commands import make_app


class Shell(StrEnum):
    """The shells whose completions are known."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell to complete in.")],
) -> None:
    """Print the completions for a shell.

    bash: driftq completion bash > ~/.local/share/bash-completion/completions/driftq

    zsh: driftq completion zsh > a directory of $fpath, as _driftq

    fish: driftq completion fish > ~/.config/fish/completions/driftq.fish
    """
    os.environ["_DRIFTQ_COMPLETE"] = f"source_{shell.value}"
    typer.main.get_command(make_app(completing=True)).main([], prog_name="driftq")
