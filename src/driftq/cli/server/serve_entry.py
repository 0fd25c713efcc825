"""`driftq serve` as an entry for the list of commands, for `driftq help` and for shell completion.

`cli.main` runs the real command and parses its flags without Typer. The flags here come from the same table of
settings.
"""

from inspect import Parameter, Signature
from typing import Annotated

import typer

from driftq.config import OPTIONS, Option


def serve(**_: object) -> None:
    """Run a server until SIGTERM or SIGINT."""


def _parameter(option: Option) -> Parameter:
    kind = bool if option.type is bool else str
    declared = typer.Option(option.flag, help=option.help, metavar=None if kind is bool else "N|TEXT")
    return Parameter(
        option.field.replace(".", "_"),
        Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, declared],
    )


_parameters = [_parameter(option) for option in OPTIONS]
serve.__signature__ = Signature(_parameters)  # type: ignore[attr-defined]
serve.__annotations__ = {parameter.name: parameter.annotation for parameter in _parameters}
