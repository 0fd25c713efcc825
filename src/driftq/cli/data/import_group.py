"""`driftq import`: the group of import commands. An argument that is not a command's name is a file to import."""

from collections.abc import Mapping
from typing import Any, ClassVar

import typer

from driftq.cli.lazy_groups import CommandEntry, LazyGroup

_FILES = "files"


class _Imports(LazyGroup):
    table: ClassVar[Mapping[str, CommandEntry]] = {
        _FILES: CommandEntry(
            "Ways",
            "driftq.cli.data.import_files:import_files",
            "Write the records of NDJSON, Arrow or Parquet files to a topic (the word `files` is optional).",
        ),
        "driftq-core": CommandEntry(
            "Ways", "driftq.cli.data.import_core:import_core", "Import the log of the Go broker."
        ),
    }

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the command `files` if the first argument is not a command: `driftq import FILE…`."""
        if args and args[0] not in self.table and args[0] not in ("-h", "--help"):
            args = [_FILES, *args]
        return super().parse_args(ctx, args)


def _nothing_of_its_own() -> None:
    """Do nothing; Typer needs a callback to make a group."""


imports = typer.Typer(
    cls=_Imports,
    callback=_nothing_of_its_own,
    help="Import records from files, or the log of another broker.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
