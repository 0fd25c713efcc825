"""`driftq topic`: which topics there are, how one stands, and making and deleting them."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftq.cli.exits import CommandError, ExitCode
from driftq.cli.frame import group
from driftq.cli.output import Json, Yes, confirm, show, show_rows
from driftq.cli.remote import TopicName, fields_of, served
from driftq.model.topic import Discard, Durability, TopicType

if TYPE_CHECKING:
    from driftq.client import Client

topic = group("Topics: list, show, create and delete them, and where their readers stand.")

_ROW = ("topic", "head_seq", "earliest_seq", "count", "bytes", "durable", "effective_priority")
_CURSOR = ("cursor", "seq", "lag", "head_seq", "epoch", "updated_ts", "meta")


@topic.command("ls")
@served
def ls(
    client: "Client",
    *,
    prefix: Annotated[str | None, typer.Option(help="Only names that begin like this.")] = None,
    as_json: Json = False,
) -> None:
    """List the topics, those of the broker (`v1:…`) too."""
    rows = [fields_of(row) for row in client.topics(prefix=prefix)]
    show_rows(rows, _ROW, as_json=as_json)


@topic.command("show")
@served
def show_topic(client: "Client", name: TopicName, *, as_json: Json = False) -> None:
    """Show how a topic stands and how it is set up."""
    state = client.topic(name).info(touch=False)
    show(fields_of(state), as_json=as_json)


@topic.command("create")
@served
def create(
    client: "Client",
    name: TopicName,
    *,
    kind: Annotated[TopicType, typer.Option("--type", help="A log, or a queue of jobs.")] = "log",
    durability: Annotated[Durability, typer.Option(help="What an ack waits for.")] = Durability.DISK,
    ttl_ms: Annotated[int, typer.Option(min=0, help="Records expire after this time; 0: never.")] = 0,
    cap_records: Annotated[int, typer.Option(min=0, help="At most so many records; 0: no limit.")] = 0,
    cap_bytes: Annotated[int, typer.Option(min=0, help="At most so many bytes; 0: no limit.")] = 0,
    discard: Annotated[Discard, typer.Option(help="At a cap: drop old records, or reject new ones.")] = Discard.OLD,
    lease_ms: Annotated[int | None, typer.Option(help="Of a queue: how long a job is held.")] = None,
    max_deliveries: Annotated[int | None, typer.Option(help="Of a queue: then a job is a dead letter.")] = None,
    dead_letter: Annotated[str | None, typer.Option(help="Of a queue: the topic for dead letters.")] = None,
    more: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the config of a topic that is there.")] = False,
    as_json: Json = False,
) -> None:
    """Create a topic; one that is there is left alone, unless --replace."""
    config: dict[str, Any] = {"type": kind, "durability": durability, "ttl_ms": ttl_ms, "cap_records": cap_records}
    config |= {"cap_bytes": cap_bytes, "discard": discard}
    queue = {"lease_ms": lease_ms, "max_deliveries": max_deliveries, "dead_letter": dead_letter}
    config |= {field: value for field, value in queue.items() if value is not None}
    config |= dict(map(_setting, more or []))
    handle = client.topic(name)
    if not replace and _is_there(handle):
        raise CommandError(f"topic {name} is there already; --replace gives it this config")
    try:
        answer = handle.create(**config)
    except TypeError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None
    show(fields_of(answer), as_json=as_json)


def _setting(text: str) -> tuple[str, object]:
    """A setting as NAME=VALUE, the value in JSON or else as it is."""
    from msgspec import DecodeError, json

    name, found, value = text.partition("=")
    if not found:
        raise CommandError(f"--set {text!r} is not NAME=VALUE", ExitCode.USAGE)
    try:
        return name, json.decode(value)
    except DecodeError:
        return name, value


def _is_there(handle: Any) -> bool:
    from driftq.client import NotFoundError

    try:
        handle.info(touch=False)
    except NotFoundError:
        return False
    return True


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
        raise CommandError(f"there is no topic {name}; `driftq topic ls` lists those there are", ExitCode.ABSENT)
    show(fields_of(answer), as_json=as_json)


@topic.command("cursors")
@served
def cursors(
    client: "Client",
    name: TopicName,
    *,
    prefix: Annotated[str | None, typer.Option(help="Only names that begin like this.")] = None,
    as_json: Json = False,
) -> None:
    """List the named cursors of a topic, and how far each is behind."""
    rows = [fields_of(row) for row in client.topic(name).cursors(prefix=prefix)]
    show_rows(rows, _CURSOR, as_json=as_json)
