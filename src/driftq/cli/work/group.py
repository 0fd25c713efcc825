"""`driftq group`: show the consumer groups of the broker, and move their positions."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import to_builtins

from driftq.cli.exits import CommandError, ExitCode
from driftq.cli.lazy_groups import group
from driftq.cli.output import Json, Yes, confirm, show_rows
from driftq.cli.server_access import ask, served
from driftq.model.v1_answers import GroupList, GroupMoved

if TYPE_CHECKING:
    from driftq.client import Client

groups = group("Groups of the broker: show their positions and lag, and move them.")

_ROW = (
    *("topic", "group", "partition", "streams", "lag", "in_flight", "waiting", "done", "floor", "last_acked"),
    *("oldest_ms", "owners"),
)
_MOVED = ("partition", "floor_before", "floor_after")

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic of the broker.")]


@groups.command("ls")
@served
def ls(
    client: "Client",
    topic: Annotated[str | None, typer.Argument(help="Only groups of this topic.")] = None,
    *,
    name: Annotated[str | None, typer.Option("--group", help="Only this group.")] = None,
    as_json: Json = False,
) -> None:
    """List the groups, one row per partition."""
    found = ask(client, "GET", "/v1/groups", GroupList, query={"topic": topic, "group": name})
    rows = [
        {"topic": one.topic, "group": one.group, "streams": one.streams, **to_builtins(partition)}
        for one in found.groups
        for partition in one.partitions
    ]
    show_rows(rows, _ROW, as_json=as_json)


@groups.command("seek")
@served
def seek(
    client: "Client",
    topic: Topic,
    name: Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group; created if missing.")],
    *,
    to: Annotated[
        str, typer.Option(metavar="earliest|latest|OFFSET|@MS", help="New position; @MS is a time (Unix ms).")
    ],
    partition: Annotated[list[int] | None, typer.Option(min=0, help="Only this partition; may be repeated.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Move the group even while it has open streams.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would change.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Move a group's position. Messages after it are delivered, again if necessary."""
    body = {"topic": topic, "group": name, "to": _place(to), "dry_run": dry_run, "force": force}
    body |= {} if partition is None else {"partitions": partition}
    if not dry_run:
        confirm(f"Move group {name} of {topic} to {to}?", yes=yes)
    moved = ask(client, "POST", "/v1/groups/seek", GroupMoved, body=body).moved
    show_rows(to_builtins(moved), _MOVED, as_json=as_json)


def _place(to: str) -> Any:
    if to in ("earliest", "latest"):
        return to
    kind, number = ("timestamp", to[1:]) if to.startswith("@") else ("offset", to)
    if not number.isdecimal():
        raise CommandError(f"--to {to!r} is neither earliest, latest, an offset nor @milliseconds", ExitCode.USAGE)
    return {kind: int(number)}
