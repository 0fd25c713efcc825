"""Every command but `serve`, which `cli.main` runs without this module: it is here to stand in the list of commands."""

from pathlib import Path
from typing import Annotated

import typer

from driftq import __version__
from driftq.cli.options import EXIT_CODES

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
)


imports = typer.Typer(no_args_is_help=True, help="Bring in what another broker has stored.")
app.add_typer(imports, name="import")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"driftq {__version__}")
        raise typer.Exit


@app.callback()
def driftq(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """An append-only-log server that never loses what it acked, and never loses anything in silence."""


@app.command()
def serve() -> None:
    """Run a server until SIGTERM or SIGINT."""


@app.command(epilog=EXIT_CODES)
def selfcheck(
    *, as_json: Annotated[bool, typer.Option("--json", help="Print the same facts as JSON.")] = False
) -> None:
    """Start a server in a temporary directory, check that it works, and say what was checked."""
    from driftq.cli.selfcheck import run_selfcheck

    raise typer.Exit(run_selfcheck(as_json=as_json))


@imports.command(name="driftq-core", epilog=EXIT_CODES)
def import_core(
    file: Annotated[Path, typer.Argument(help="The log that driftq-core has written, JSON lines.")],
    *,
    data_dir: Annotated[
        str | None, typer.Option(help="Data directory to import into; made if absent, and no server may have it open.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was imported as JSON.")] = False,
) -> None:
    """Import topics, messages, progress, failures and idempotency outcomes of the Go broker."""
    from driftq.cli.import_core import run_import

    raise typer.Exit(run_import(file, data_dir, as_json=as_json))
