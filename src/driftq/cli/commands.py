"""Lists every command of `driftq` in one table.

To add a command or a group of commands, write one line in `COMMANDS`: its name, its section of the help, its location
(`module:name`) and what it does. The location is a function, which becomes a command, or a `lazy_groups.group(…)`,
whose functions become `driftq <group> <command>`. The module is imported only when the command is called. Commands
also use:

    from driftq.cli.server_access import served             passes a client of the chosen server to a function
    from driftq.cli.output import Json, show, show_rows     tables, or JSON with the same fields
    from driftq.cli.exits import CommandError, ExitCode     errors: one line and one exit code

`cli.main` runs `serve` without this module; the entry here is for the help and for shell completion.
"""

from typing import Annotated

import typer

from driftq import __version__
from driftq.cli.lazy_groups import CommandEntry, LazyGroup, commands_of

_WHAT = (
    "A log, queue and broker server. Acked records survive as their durability class promises; every loss is reported."
)

_SERVER = "Server"
_TOPICS = "Topics and records"
_WORK = "Queues, groups and runs"
_DATA = "Data"
_SHELL = "This command line"

COMMANDS = {
    "serve": CommandEntry(_SERVER, "driftq.cli.server.serve_entry:serve", "Run a server until SIGTERM or SIGINT."),
    "selfcheck": CommandEntry(
        _SERVER, "driftq.cli.server.selfcheck:selfcheck", "Start a temporary server and check that it works."
    ),
    "demo": CommandEntry(_SERVER, "driftq.cli.demo.demo:demo", "Play a workload of agents on a new server."),
    "doctor": CommandEntry(
        _SERVER, "driftq.cli.server.doctor:doctor", "Check the machine and the server, and recommend what to do."
    ),
    "bench": CommandEntry(
        _SERVER, "driftq.cli.server.bench:bench", "Measure rates and latencies of a server in a few seconds."
    ),
    "topic": CommandEntry(
        _TOPICS, "driftq.cli.topics.topic:topic", "List, show, create, change and delete topics; list named cursors."
    ),
    "append": CommandEntry(
        _TOPICS, "driftq.cli.topics.append:append", "Append JSON lines from a file or from standard input."
    ),
    "read": CommandEntry(_TOPICS, "driftq.cli.topics.read:read", "Print the records of a topic."),
    "tail": CommandEntry(_TOPICS, "driftq.cli.topics.read:tail", "Print the last records of topics and follow them."),
    "router": CommandEntry(_TOPICS, "driftq.cli.topics.router:router", "List, draw, create and delete routers."),
    "queue": CommandEntry(
        _WORK, "driftq.cli.work.queue:queue", "Show queues, take jobs, and run a command for each job."
    ),
    "group": CommandEntry(
        _WORK, "driftq.cli.work.group:groups", "Show the groups of the broker, and move their positions."
    ),
    "run": CommandEntry(_WORK, "driftq.cli.work.run:run", "Show the steps of a run."),
    "dlq": CommandEntry(_WORK, "driftq.cli.work.dlq:dlq", "Show dead letters, and move them back for a retry."),
    "export": CommandEntry(
        _DATA, "driftq.cli.data.export:export", "Write a topic to an NDJSON, Arrow or Parquet file."
    ),
    "import": CommandEntry(
        _DATA, "driftq.cli.data.import_group:imports", "Import records from files, or the log of another broker."
    ),
    "backup": CommandEntry(_DATA, "driftq.cli.data.backup:backup", "Back up every topic of a running server."),
    "restore": CommandEntry(_DATA, "driftq.cli.data.backup:restore", "Make a data directory from a backup."),
    "inspect": CommandEntry(
        _DATA, "driftq.cli.data.data_directory:inspect", "Show what is in the files of a data directory."
    ),
    "verify": CommandEntry(
        _DATA, "driftq.cli.data.data_directory:verify", "Read every byte of a data directory, and list what is wrong."
    ),
    "repair": CommandEntry(_DATA, "driftq.cli.data.data_directory:repair", "Repair a damaged data directory."),
    "pipeline": CommandEntry(_DATA, "driftq.cli.data.pipeline:pipeline", "Run the jobs of the data pipeline on Spark."),
    "help": CommandEntry(
        _SHELL, "driftq.cli.shell_help:manual", "Show the help of a command, or what the exit codes mean."
    ),
    "completion": CommandEntry(
        _SHELL, "driftq.cli.shell_help:completion", "Print shell completions for bash, zsh or fish."
    ),
}
"""Commands by name, in the order of the help."""


class _Commands(LazyGroup):
    table = COMMANDS


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"driftq {__version__}")
        raise typer.Exit


def _driftq(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Accept the options that come before every command."""


def make_app(*, completing: bool = False) -> typer.Typer:
    """Return the app with all commands. With `completing`, shell completion is imported too."""
    return commands_of(_Commands, _driftq, _WHAT, completing=completing)
