"""`driftq topic`: list, show, create, change and delete topics, and list their named cursors."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftq.cli.exits import CommandError, ExitCode
from driftq.cli.lazy_groups import group
from driftq.cli.output import Json, Yes, confirm, show, show_rows
from driftq.cli.server_access import TopicName, fields_of, served
from driftq.model.topic_config import Discard, Durability, TopicType

if TYPE_CHECKING:
    from driftq.client import Client, Topic

topic = group("Topics: list, show, create, change and delete them, and list their named cursors.")

_Durability = Annotated[Durability | None, typer.Option(help="What an ack waits for. Default: disk.")]
_TtlMs = Annotated[int | None, typer.Option(min=0, help="Records expire after this time in ms; 0 = never.")]
_CapRecords = Annotated[int | None, typer.Option(min=0, help="Keep at most this many records; 0 = no limit.")]
_CapBytes = Annotated[int | None, typer.Option(min=0, help="Keep at most this many bytes; 0 = no limit.")]
_Discard = Annotated[Discard | None, typer.Option(help="At a cap: drop old records, or reject new ones.")]
_LeaseMs = Annotated[int | None, typer.Option(help="For queues: lease of a job in ms.")]
_MaxDeliveries = Annotated[
    int | None,
    typer.Option(help="For queues: deliveries after which a job becomes a dead letter; needs --dead-letter."),
]
_DeadLetter = Annotated[str | None, typer.Option(help="For queues: topic for dead letters.")]
_More = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set any other setting; may be repeated.")
]

_ROW = ("topic", "head_seq", "earliest_seq", "count", "bytes", "durable", "effective_priority")
_CURSOR = ("cursor", "seq", "lag", "head_seq", "epoch", "updated_ts", "meta")


@topic.command("ls")
@served
def ls(
    client: "Client",
    *,
    prefix: Annotated[str | None, typer.Option(help="Only names that start with this.")] = None,
    as_json: Json = False,
) -> None:
    """List the topics, including those of the broker (`@NAME`)."""
    rows = [fields_of(row) for row in client.topics(prefix=prefix)]
    show_rows(rows, _ROW, as_json=as_json)


@topic.command("show")
@served
def show_topic(client: "Client", name: TopicName, *, as_json: Json = False) -> None:
    """Show the state and the settings of a topic."""
    state = client.topic(name).info(touch=False)
    show(fields_of(state), as_json=as_json)


@topic.command("create")
@served
def create(
    client: "Client",
    name: TopicName,
    *,
    kind: Annotated[TopicType, typer.Option("--type", help="A log, or a queue of jobs.")] = "log",
    durability: _Durability = None,
    ttl_ms: _TtlMs = None,
    cap_records: _CapRecords = None,
    cap_bytes: _CapBytes = None,
    discard: _Discard = None,
    lease_ms: _LeaseMs = None,
    max_deliveries: _MaxDeliveries = None,
    dead_letter: _DeadLetter = None,
    more: _More = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the config of a topic that exists.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Create a topic. Fails if it exists; with --replace, its whole config is overwritten."""
    from driftq.client import ConfigDiffersError

    given: dict[str, Any] = {"durability": durability, "ttl_ms": ttl_ms, "cap_records": cap_records}
    given |= {"cap_bytes": cap_bytes, "discard": discard, "lease_ms": lease_ms, "max_deliveries": max_deliveries}
    given |= {"dead_letter": dead_letter}
    config = {"type": kind} | _fields(given, more)
    handle = client.topic(name)
    try:
        if replace:
            _confirm_changes(handle, config, yes=yes)
            answer = handle.replace(**config)
        else:
            answer = handle.create(**config)
    except TypeError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None
    except ConfigDiffersError:
        raise _exists(name) from None
    if not (replace or answer.created):
        raise _exists(name)
    show(fields_of(answer), as_json=as_json)


@topic.command("set")
@served
def set_fields(
    client: "Client",
    name: TopicName,
    *,
    durability: _Durability = None,
    ttl_ms: _TtlMs = None,
    cap_records: _CapRecords = None,
    cap_bytes: _CapBytes = None,
    discard: _Discard = None,
    lease_ms: _LeaseMs = None,
    max_deliveries: _MaxDeliveries = None,
    dead_letter: _DeadLetter = None,
    more: _More = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="Reset this setting to its default; may be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Change settings of a topic. All others stay as they are."""
    given: dict[str, Any] = {"durability": durability, "ttl_ms": ttl_ms, "cap_records": cap_records}
    given |= {"cap_bytes": cap_bytes, "discard": discard, "lease_ms": lease_ms, "max_deliveries": max_deliveries}
    given |= {"dead_letter": dead_letter}
    changes = _fields(given, more)
    for field in (text.replace("-", "_") for text in unset or []):
        if field in changes:
            raise CommandError(f"{field} is both set and unset", ExitCode.USAGE)
        changes[field] = None
    if not changes:
        raise CommandError("nothing to change: name a setting, as in --cap-records 1000", ExitCode.USAGE)
    try:
        answer = client.topic(name).update(**changes)
    except TypeError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None
    show(fields_of(answer, "created"), as_json=as_json)


def _fields(given: dict[str, Any], more: list[str] | None) -> dict[str, Any]:
    """Return the settings that were given, by option or as NAME=VALUE."""
    return {field: value for field, value in given.items() if value is not None} | dict(map(_setting, more or []))


def _setting(text: str) -> tuple[str, object]:
    """Parse NAME=VALUE; a value that is not JSON is a string."""
    from msgspec import DecodeError, json

    name, found, value = text.partition("=")
    if not found:
        raise CommandError(f"--set {text!r} is not NAME=VALUE", ExitCode.USAGE)
    try:
        return name, json.decode(value)
    except DecodeError:
        return name, value


def _exists(name: str) -> CommandError:
    return CommandError(
        f"topic {name} exists already; `driftq topic set` changes single settings, --replace replaces its config"
    )


def _confirm_changes(handle: "Topic", config: dict[str, Any], *, yes: bool) -> None:
    """Ask before a replacement changes any setting of an existing topic. Raise CommandError if the user declines."""
    from msgspec import to_builtins

    from driftq.client import NotFoundError
    from driftq.client.topics.topic import topic_config

    wanted = topic_config(None, config)
    try:
        before = to_builtins(handle.info(touch=False).config)
    except NotFoundError:
        return
    after = to_builtins(wanted.resolved(handle.name))
    changes = [f"{field} {before[field]} -> {after[field]}" for field in before if before[field] != after[field]]
    if changes:
        confirm(f"Replace the config of topic {handle.name}? It changes {', '.join(changes)}.", yes=yes)


@topic.command("delete")
@served
def delete(
    client: "Client",
    name: TopicName,
    *,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only if it has no records.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete a topic, its records, and the routers that name it."""
    confirm(f"Delete topic {name} and all its records?", yes=yes or if_empty)
    answer = client.topic(name).delete(if_empty=if_empty)
    if not answer.deleted:
        raise CommandError(f"topic {name} does not exist; `driftq topic ls` lists all topics", ExitCode.ABSENT)
    show(fields_of(answer), as_json=as_json)


@topic.command("cursors")
@served
def cursors(
    client: "Client",
    name: TopicName,
    *,
    prefix: Annotated[str | None, typer.Option(help="Only names that start with this.")] = None,
    as_json: Json = False,
) -> None:
    """List the named cursors of a topic and the lag of each."""
    rows = [fields_of(row) for row in client.topic(name).cursors(prefix=prefix)]
    show_rows(rows, _CURSOR, as_json=as_json)
