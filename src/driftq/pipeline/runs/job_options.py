"""Options of a job, from flags or keywords. The fields of its struct define the options; msgspec checks the values.

The field `max_records: int | None` is the flag `--max-records N`, and `once: bool` is `--once`. A list field can be
given several times, or once with commas.
"""

import argparse
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar, Union

import msgspec

from driftq.pipeline.errors import PipelineError

Options = TypeVar("Options", bound=msgspec.Struct)


class Flag(NamedTuple):
    """One option in its form as a flag."""

    name: str
    field: str
    type: type
    listed: bool
    required: bool
    default: Any
    choices: tuple[str, ...]
    help: str


class WrongFlagError(PipelineError):
    """An unknown flag, or a value that the flag does not accept."""


class HelpAskedError(Exception):
    """The user asked for help. The message is the help text."""


def flags_of(options: type[msgspec.Struct]) -> list[Flag]:
    """Return one flag per field of the struct."""
    hints = typing.get_type_hints(options, include_extras=True)
    return [_flag(field, hints[field.name]) for field in msgspec.structs.fields(options)]


def _flag(field: msgspec.structs.FieldInfo, hint: Any) -> Flag:
    help_text, kind, listed = _plain(hint)
    choices: tuple[str, ...] = ()
    if typing.get_origin(kind) is typing.Literal:
        choices, kind = typing.get_args(kind), str
    default = field.default if field.default is not msgspec.NODEFAULT else None
    name = "--" + field.name.replace("_", "-")
    return Flag(name, field.name, kind, listed, field.required, default, choices, help_text)


def _plain(hint: Any) -> tuple[str, Any, bool]:
    """Return help, type and whether it is a list, of a hint like `Annotated[list[T] | None, Meta(description=…)]`."""
    help_text, listed = "", False
    while True:
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is typing.Annotated:
            help_text = next((meta.description for meta in arguments[1:] if meta.description), help_text)
            hint = arguments[0]
        elif origin in (Union, types.UnionType):
            hint = next(one for one in arguments if one is not type(None))
        elif origin in (list, tuple):
            hint, listed = arguments[0], True
        else:
            return help_text, hint, listed


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise WrongFlagError(f"{message}; see {self.prog} --help")

    def print_help(self, file: Any = None) -> None:
        raise HelpAskedError(self.format_help())


def parse_flags(options: type[Options], arguments: Sequence[str], *, name: str, about: str) -> Options:
    """Return the options that the flags set. Raises WrongFlagError or HelpAskedError."""
    parser = _Parser(
        prog=f"driftq pipeline run {name}",
        description=about,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30),
    )
    flags = flags_of(options)
    for flag in flags:
        _add(parser, flag)
    given = vars(parser.parse_args(list(arguments)))
    for flag in flags:
        if flag.listed and flag.field in given:
            given[flag.field] = [one for text in given[flag.field] for one in text.split(",") if one]
    return make_options(options, given)


def _add(parser: argparse.ArgumentParser, flag: Flag) -> None:
    shown = ",".join(flag.default) if isinstance(flag.default, list | tuple) else flag.default
    default = f" [{shown}]" if shown not in (None, False, "") else ""
    text = (flag.help + default).replace("%", "%%")
    if flag.type is bool:
        parser.add_argument(flag.name, dest=flag.field, action=argparse.BooleanOptionalAction, help=text)
        return
    parser.add_argument(
        flag.name,
        dest=flag.field,
        action="append" if flag.listed else "store",
        required=flag.required,
        metavar={int: "N", float: "N"}.get(flag.type, "|".join(flag.choices) or "TEXT"),
        help=text,
    )


def make_options(options: type[Options], given: Mapping[str, Any]) -> Options:
    """Return the options made of keywords or of flag texts. Raises WrongFlagError."""
    try:
        return msgspec.convert(dict(given), options, strict=False)
    except msgspec.ValidationError as error:
        raise WrongFlagError(_told(str(error))) from None


def _told(problem: str) -> str:
    """Return `--max-records: Expected `int`, got `str`` for msgspec's `… - at `$.max_records``."""
    text, at, place = problem.partition(" - at `$.")
    flag = "--" + place.partition("`")[0].partition("[")[0].replace("_", "-") if at else ""
    return f"{flag}: {text}" if flag else text
