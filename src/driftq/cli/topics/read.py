"""`driftq read` and `driftq tail`: print records as text or JSON lines, and report lost records in their place."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from driftq.cli.exits import CommandError, ExitCode
from driftq.cli.output import Json, note, print_line, printable, readable
from driftq.cli.server_access import TopicName, complete_topic, served

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from driftq.client import Client, Record, Start, Tombstone, WatchEvent

_LINES = 10
"""Number of existing records that `tail` shows by default."""

FromSeq = Annotated[int | None, typer.Option(min=0, help="Start after this seq (exclusive). 0 = oldest available.")]
Epoch = Annotated[
    int | None,
    typer.Option(min=0, help="Epoch that --from-seq belongs to, as `topic show` printed it. Default: the current one."),
]
FromTs = Annotated[int | None, typer.Option(min=0, help="Start with records written at or after this time (Unix ms).")]
Count = Annotated[int | None, typer.Option("--limit", min=1, help="Stop after this many records.")]


@served
def read(
    client: "Client",
    name: TopicName,
    *,
    from_seq: FromSeq = None,
    from_ts: FromTs = None,
    epoch: Epoch = None,
    limit: Count = None,
    as_json: Json = False,
) -> None:
    """Print the records of a topic, up to the newest one at the start; with --json, one object per line."""
    if from_seq is not None and from_ts is not None:
        raise CommandError("--from-seq and --from-ts cannot be combined; omit one", ExitCode.USAGE)
    if epoch is None and from_seq:
        epoch = client.topic(name).info(touch=False).epoch
    with client.topic(name).read(from_seq, from_ts=from_ts, epoch=epoch) as items:
        _print_all(items, limit, as_json=as_json)


def _print_all(items: "Iterable[Record | Tombstone]", limit: int | None, *, as_json: bool) -> None:
    from driftq.client import Record

    left = limit
    for item in items:
        print_item(item, as_json=as_json)
        if left is not None and isinstance(item, Record):
            left -= 1
            if not left:
                return


@served
def tail(
    client: "Client",
    names: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", help="One or more topics.", autocompletion=complete_topic)
    ],
    *,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Number of existing records to print first.")
    ] = _LINES,
    from_seq: FromSeq = None,
    from_ts: FromTs = None,
    limit: Count = None,
    as_json: Json = False,
) -> None:
    """Print the last records of topics, then follow them until interrupted.

    If the server restarts, the command reconnects; no record is missed or shown twice.
    """
    from driftq.client import Start

    if from_seq is None and from_ts is None:
        starts = {name: _near_the_end(client, name, lines) for name in names}
    else:
        epochs = {name: client.topic(name).info(touch=False).epoch if from_seq else None for name in names}
        starts = {name: Start(from_seq, from_ts, epoch=epochs[name]) for name in names}
    with client.watch(starts) as events:
        _follow(events, limit, as_json=as_json, many=len(names) > 1)


def _near_the_end(client: "Client", name: str, lines: int) -> "Start":
    from driftq.client import Start

    state = client.topic(name).info(touch=False)
    return Start(max(state.head_seq - lines, state.earliest_seq - 1, 0))


def _follow(events: "Iterator[WatchEvent]", limit: int | None, *, as_json: bool, many: bool) -> None:
    from driftq.client import Record, Tombstone, TopicGone

    left = limit
    for event in events:
        if isinstance(event.item, TopicGone):
            note(f"topic {event.topic} was deleted")
        if isinstance(event.item, Record | Tombstone):
            print_item(event.item, as_json=as_json, topic=event.topic if many or as_json else None)
            sys.stdout.buffer.flush()  # readers of a followed topic want each record at once
        if left is not None and isinstance(event.item, Record):
            left -= 1
            if not left:
                return
    raise CommandError("no topic is left to follow", ExitCode.ABSENT)


def print_item(item: "Record | Tombstone", *, as_json: bool, topic: str | None = None) -> None:
    """Print a record, or a tombstone, as one line."""
    from driftq.client import Record

    if as_json:
        from msgspec import to_builtins

        print_line({**({} if topic is None else {"topic": topic}), **to_builtins(item)}, at_once=False)
        return
    place = "" if topic is None else f"{topic}  "
    line = place + (_record_line(item) if isinstance(item, Record) else _gap_line(item))
    sys.stdout.buffer.write(printable(line).encode() + b"\n")


def _record_line(record: "Record") -> str:
    from msgspec import json

    parts = [str(record.seq), readable("ts", record.ts)]
    parts += [f"#{record.tag}"] if record.tag is not None else []
    parts += [f"@{record.node}"] if record.node is not None else []
    parts.append(json.encode(record.data).decode())
    parts += [json.encode(record.meta).decode()] if record.meta else []
    return "  ".join(parts)


def _gap_line(gap: "Tombstone") -> str:
    return f"-- {gap.text()}"
