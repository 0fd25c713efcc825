"""The flags of `driftq serve`, made from the table of settings, which has their names, limits and help texts.

argparse parses them: importing Typer alone would take a quarter of the time that a start may take.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from typing import NoReturn

from driftq.cli.exits import EXIT_CODES
from driftq.config import OPTIONS, Option, Value

_DESCRIPTION = """\
Run a server until SIGTERM or SIGINT.

Every flag can also be set in the environment: --wal-shards is DRIFTQ_WAL_SHARDS. The flag takes precedence.
API keys are read only from DRIFTQ_API_KEYS."""


def parse_flags(arguments: Sequence[str]) -> dict[str, Value]:
    """Return the settings that were given as flags, by field. Exit with code 2 if one is wrong."""
    parser = _Parser(
        prog="driftq serve",
        usage="driftq serve [flags]",
        description=_DESCRIPTION,
        epilog=EXIT_CODES,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=34),
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in OPTIONS:
        group = groups.get(option.group) or groups.setdefault(option.group, parser.add_argument_group(option.group))
        _add(group, option)
    parser.arguments = arguments
    return vars(parser.parse_args(arguments))


class _Parser(argparse.ArgumentParser):
    arguments: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        """Print the error as one line, in the chosen log format, and exit with code 2."""
        from driftq.cli.server.log_lines import chosen_format, refuse

        refuse(f"{message}; see {self.prog} --help", chosen_format(self.arguments, os.environ), code=2)
        self.exit(2)


def _add(group: argparse._ArgumentGroup, option: Option) -> None:
    if option.type is bool:
        group.add_argument(option.flag, dest=option.field, action=argparse.BooleanOptionalAction, help=option.help)
        return
    default = "" if option.default is None else f" [{option.default}]"
    group.add_argument(
        option.flag,
        dest=option.field,
        type=_number(option) if option.type is int else str.lower if option.choices else str,
        choices=option.choices or None,
        metavar="N" if option.type is int else "|".join(option.choices) or "TEXT",
        help=option.help + default,
    )


def _number(option: Option) -> Callable[[str], int]:
    most = "" if option.most is None else f" and at most {option.most}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = option.least - 1
        if value < option.least or (option.most is not None and value > option.most):
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least {option.least}{most}")
        return value

    return parse
