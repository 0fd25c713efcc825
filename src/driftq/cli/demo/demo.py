"""`driftq demo`: start a server, play the workload on it, run the data pipeline over it, and show the results."""

import asyncio
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import to_builtins

from driftq.cli.exits import CommandError
from driftq.cli.output import Json, note, print_line, show, show_rows
from driftq.cli.server.child_server import ChildServer
from driftq.cli.server_access import translated
from driftq.system.clock import SystemClock

if TYPE_CHECKING:
    from driftq.cli.demo.demo_tables import Tables
    from driftq.cli.demo.workload import Played

_PORT = 4000
_LABELS = ("--router", "driftq.cli.demo.step_labels:Labels")

DataDir = Annotated[Path, typer.Option(metavar="DIR", help="Data directory of the server; the lake is next to it.")]
Serve = Annotated[bool, typer.Option("--serve", help="Keep the server running afterwards, until Ctrl-C.")]
Port = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="Port to listen on. Default: 4000 with --serve, else any free port."),
]
Spark = Annotated[bool, typer.Option("--spark/--no-spark", help="Run the data pipeline, if it is installed.")]
Runs = Annotated[int, typer.Option(min=12, max=1000, help="Number of runs for the agents.")]


def demo(
    *,
    serve: Serve = False,
    data_dir: DataDir = Path("driftq-demo"),
    port: Port = None,
    spark: Spark = True,
    runs: Runs = 36,
    as_json: Json = False,
) -> None:
    """Play agents of several tenants, with retries and poison messages, then archive and trace all with Spark."""
    data_dir = data_dir.absolute()
    log = data_dir.with_name(f"{data_dir.name}-server.log")
    lake = data_dir.with_name(f"{data_dir.name}-lake")
    log.parent.mkdir(parents=True, exist_ok=True)
    chosen = port if port is not None else _PORT if serve else 0
    with _ended_by_a_signal(), ChildServer(data_dir, log, port=chosen, flags=_LABELS) as server:
        url = f"http://{server.address}"
        played, tables = _play(url, runs)
        with _ended_by_a_signal():  # the workers replaced the signal handlers while they ran
            tables |= _pipeline(url, lake) if spark else {}
            places = {"server": url, "data": str(data_dir), "lake": str(lake), "log": str(log)}
            _tell(played, tables, places, as_json=as_json)
            if serve:
                _wait(server, url)
        server.stop()


def _play(url: str, runs: int) -> "tuple[Played, Tables]":
    from driftq.cli.demo.demo_tables import tables_of
    from driftq.cli.demo.workload import play
    from driftq.client import Client, ClientError

    # Handlers fail on purpose here, and the tables show their errors.
    logging.getLogger("driftq.client").setLevel(logging.CRITICAL)
    _say(f"agents work on {runs} runs")
    try:
        played = asyncio.run(play(url, f"{SystemClock().wall_ms() // 1000:x}", runs))
        with Client(url) as client:
            return played, tables_of(client, played)
    except ClientError as error:
        raise translated(error, url) from None


def _pipeline(url: str, lake: Path) -> "Tables":
    from driftq.cli.demo.demo_lake import missing, run_pipeline, stop_spark

    absent = missing()
    if absent is not None:
        note(f"the data pipeline is skipped: it needs {absent}; install it with `pip install 'driftq[spark]'`")
        return {}
    try:
        tables = run_pipeline(url, lake, _say)
    finally:
        stop_spark()
    differing = [row["topic"] for row in tables["archive and server"] if row["verdict"] != "equal"]
    if differing:
        raise CommandError(f"the archive differs from the server in {', '.join(map(str, differing))}")
    return tables


def _tell(played: "Played", tables: "Tables", places: dict[str, str], *, as_json: bool) -> None:
    facts = to_builtins(played)
    if as_json:
        print_line({"played": facts, "tables": tables, "places": places})
        return
    _title("the workload")
    show(facts, as_json=False)
    for title, rows in tables.items():
        _title(title)
        show_rows(rows, as_json=False)
    _title("where everything is")
    show(places, as_json=False)


def _title(text: str) -> None:
    sys.stdout.write(f"\n{text}\n{'-' * len(text)}\n")
    sys.stdout.flush()


def _say(what: str) -> None:
    """Print a step of the demo if stderr is a terminal."""
    if sys.stderr.isatty():
        note(f"… {what}")


def _wait(server: ChildServer, url: str) -> None:
    """Wait until Ctrl-C. Raise CommandError if the server ends first."""
    try:
        note(f"the server keeps running at {url} until Ctrl-C")
        server.process.wait()
    except KeyboardInterrupt:
        return
    raise CommandError("the server ended; see its log")


@contextmanager
def _ended_by_a_signal() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that the demo's server is stopped too."""

    def end(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
