"""Prints results: tables for people, JSON with the same fields for programs, and progress bars on a terminal.

One list of fields gives the columns of a table and the keys of its JSON, so both always agree. Results go to standard
output, everything else to standard error. Without a terminal there are no colours, no cut lines, no bars and no
questions. rich is imported only when something is drawn, because plain lines do not need it.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Annotated

import typer
from msgspec import json

from driftq.cli.exits import CommandError, ExitCode

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Json = Annotated[bool, typer.Option("--json", help="Print the same fields as JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

_UNLIMITED = 10_000
"""Width of a table in columns if the output is not a terminal."""
_MOMENTS = ("ts", "deadline")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def show_rows(rows: Sequence[Mapping[str, object]], fields: Sequence[str] = (), *, as_json: bool) -> None:
    """Print a list, one row per item. `fields` selects and orders the columns; default: those of the first row."""
    chosen = list(fields or (rows[0] if rows else ()))
    if as_json:
        _print_json([{field: row.get(field) for field in chosen} for row in rows])
        return
    if not rows:
        note("nothing to show")
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for field in chosen:
        numbers = all(isinstance(row.get(field), int | float) for row in rows)
        table.add_column(field, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(readable(field, row.get(field))) for field in chosen))
    draw(table)


def show(facts: Mapping[str, object], *, as_json: bool) -> None:
    """Print one object, one line per field. Fields of nested objects are shown as `outer.inner`."""
    if as_json:
        _print_json(facts)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for field, value in _flat(facts):
        table.add_row(field, Text(readable(field, value)))
    draw(table)


def _flat(facts: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    for field, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{field}.")
        else:
            yield above + field, value


def readable(field: str, value: object) -> str:
    """Return a value as text for people: times in UTC, sizes with units, a dash for None."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _readable_number(field, value)
    return printable(value if isinstance(value, str) else json.encode(value).decode())


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return a text with control characters as escapes, so that it cannot command the terminal that shows it."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _readable_number(field: str, value: int | float) -> str:
    name = field.lstrip("$")
    if name.rpartition("_")[2] in _MOMENTS and value > 0:
        return datetime.fromtimestamp(value / 1000, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00") + "Z"
    if name.rpartition("_")[2] == "bytes":
        return size(value)
    return str(value) if isinstance(value, int) else f"{value:,.3f}".rstrip("0").rstrip(".")


def size(value: float) -> str:
    """Return a number of bytes in the largest unit that gives at least 1."""
    power = 0
    while value >= 1024 and power < len(_UNITS) - 1:
        value, power = value / 1024, power + 1
    return f"{value:.1f} {_UNITS[power]}" if power else f"{value:.0f} B"


def draw(what: "RenderableType") -> None:
    """Draw anything that rich can draw, on standard output."""
    console_of(sys.stdout).print(what)


def console_of(stream: IO[str]) -> "Console":
    """Return a console that is as wide as the terminal, or wide enough never to wrap if there is none."""
    from rich.console import Console

    return Console(file=stream, highlight=False, width=None if stream.isatty() else _UNLIMITED)


def _json_of(value: object) -> bytes:
    """Return JSON; for a terminal, with all control characters as escapes, which mean the same."""
    encoded = json.encode(value)
    return printable(encoded.decode()).encode() if sys.stdout.isatty() else encoded


def print_line(value: object, *, at_once: bool = True) -> None:
    """Print one line of JSON. With `at_once` it is flushed, for readers that follow the output."""
    sys.stdout.buffer.write(_json_of(value) + b"\n")
    if at_once:
        sys.stdout.buffer.flush()


def _print_json(value: object) -> None:
    sys.stdout.buffer.write(json.format(_json_of(value), indent=2) + b"\n")
    sys.stdout.buffer.flush()


def note(message: str) -> None:
    """Print a message that is not a result, on standard error. It may have several lines."""
    sys.stderr.write("\n".join(map(printable, message.split("\n"))) + "\n")


def confirm(question: str, *, yes: bool) -> None:
    """Return if `yes` is set or the user agrees, else raise CommandError. Without a terminal, `yes` is required."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandError(f"{question} Not a terminal, so there is no one to ask; pass --yes", ExitCode.USAGE)
    if not typer.confirm(question, err=True):
        raise CommandError("cancelled; nothing was changed")


@contextmanager
def progress(what: str, total: int | None = None, *, in_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a progress bar if stderr is a terminal. Call the yielded function with the amount done so far."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich import progress as bars

    amount = bars.DownloadColumn() if in_bytes else bars.MofNCompleteColumn()
    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), amount, bars.TimeElapsedColumn())
    with bars.Progress(*columns, console=console_of(sys.stderr), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
