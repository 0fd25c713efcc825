"""`driftq dlq`: dead letters, of the broker's topics (`dlq.<topic>`) and of queues (their `dead_letter` topic).

The server redrives the broker's dead letters. Those of a queue are moved by this command, oldest first: written to the
queue under an idempotency key that a repetition shares, then removed. After an interruption a letter may be in both
topics, but never in neither.
"""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct, convert

from driftq.cli.exits import CommandError, ExitCode
from driftq.cli.lazy_groups import group
from driftq.cli.output import Json, Yes, confirm, progress, show, show_rows
from driftq.cli.server_access import ask, served
from driftq.model.message import DlqNote, Envelope, Message
from driftq.model.names import broker_topic
from driftq.model.v1_answers import RedriveAsked, TopicNames

if TYPE_CHECKING:
    from driftq.client import Client, Record

dlq = group("Dead letters: list them, show them, and move them back for a retry.")

_DLQ = "dlq."
_REDRIVE = "/v1/dlq/redrive"
_STAMP = "$dead_letter_"
_PAGE = 1000
_POLL_S = 0.1
_LISTED = ("source", "dead_letter", "api", "letters")
_OF_BROKER = ("offset", "ts", "group", "attempts", "last_error", "tenant_id", "run_id", "key", "value", "redriven")
_OF_QUEUE = ("seq", "ts", "deliveries", "source_seq", "tag", "data")
_MOVED = ("source", "state", "matched", "moved", "failed")

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="Broker topic or queue that the dead letters come from.")]


class RedriveCommand(Struct):
    """Progress of a redrive job, as the server reports it."""

    state: str
    matched: int
    moved: int
    failed: int


@dlq.command("ls")
@served
def ls(client: "Client", *, as_json: Json = False) -> None:
    """List the topics of the broker and the queues that have dead letters."""
    rows = [*_of_broker(client), *_of_queues(client)]
    show_rows(rows, _LISTED, as_json=as_json)


def _of_broker(client: "Client") -> Iterator[dict[str, object]]:
    for name in ask(client, "GET", "/v1/topics", TopicNames).topics:
        if name.startswith(_DLQ):
            source = name.removeprefix(_DLQ)
            yield {"source": source, "dead_letter": name, "api": "v1", "letters": _waiting(client, source)}


def _waiting(client: "Client", source: str, offsets: list[int] | None = None) -> int | None:
    """Return how many letters are not redriven yet; None if this key may not ask."""
    from driftq.client import BadRequestError, ForbiddenError

    body = {"topic": source, "dry_run": True} | ({} if offsets is None else {"offsets": offsets})
    try:
        return ask(client, "POST", _REDRIVE, RedriveAsked, body=body).matched
    except (ForbiddenError, BadRequestError):
        return None


def _of_queues(client: "Client") -> Iterator[dict[str, object]]:
    if not client.metrics()["queue_topics"]:
        return
    names = [row.topic for row in client.topics(v1=False)]
    with progress("looking at topics", len(names)) as tell:
        for number, name in enumerate(names, 1):
            target = _dead_letter_of(client, name)
            tell(number)
            if target is not None:
                yield {"source": name, "dead_letter": target, "api": "v0", "letters": _count(client, target)}


def _dead_letter_of(client: "Client", topic: str) -> str | None:
    from driftq.client import NotFoundError

    try:
        return client.topic(topic).info(touch=False).config.dead_letter
    except NotFoundError:
        return None


def _count(client: "Client", topic: str) -> int:
    from driftq.client import NotFoundError

    try:
        return client.topic(topic).info(touch=False).count
    except NotFoundError:
        return 0


@dlq.command("show")
@served
def show_letters(
    client: "Client",
    source: Source,
    *,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of letters to show (the newest).")] = 100,
    as_json: Json = False,
) -> None:
    """Show the dead letters of a topic or a queue: what failed, how often, and for a broker topic the last error."""
    target = _target_of(client, source)
    if target is None:
        letters = _newest(client, broker_topic(_DLQ + source), limit)
        show_rows(_broker_rows(client, source, letters), _OF_BROKER, as_json=as_json)
    else:
        show_rows([_queue_row(letter) for letter in _newest(client, target, limit)], _OF_QUEUE, as_json=as_json)


def _target_of(client: "Client", source: str) -> str | None:
    """Return the dead-letter topic of a queue, or None for a topic of the broker. Raise CommandError for neither."""
    target = _dead_letter_of(client, source)
    if target is not None:
        return target
    if f"{_DLQ}{source}" not in ask(client, "GET", "/v1/topics", TopicNames).topics:
        raise CommandError(
            f"{source} has no dead letters; `driftq dlq ls` lists topics and queues that have some", ExitCode.ABSENT
        )
    return None


def _newest(client: "Client", topic: str, limit: int) -> "list[Record]":
    from driftq.client import NotFoundError, Record

    handle = client.topic(topic)
    try:
        first = max(0, handle.info(touch=False).head_seq - limit)
    except NotFoundError:
        return []
    with handle.read(first) as items:
        return [item for item in items if isinstance(item, Record)]


def _broker_rows(client: "Client", source: str, letters: "list[Record]") -> list[dict[str, object]]:
    offsets = [letter.seq - 1 for letter in letters]
    count = _waiting(client, source, offsets) if offsets else None
    rows = []
    for letter, offset in zip(letters, offsets, strict=True):
        all_alike = count in (0, len(offsets), None)
        waiting = count if all_alike else _waiting(client, source, [offset])
        rows.append(_broker_row(letter) | {"redriven": None if waiting is None else not waiting})
    return rows


def _broker_row(letter: "Record") -> dict[str, object]:
    message = convert(letter.data, Message)
    envelope = message.envelope or Envelope()
    note = envelope.dlq or DlqNote("", 0, 0, 0, "", letter.ts, "")
    return {
        "offset": letter.seq - 1,
        "ts": note.routed_at_ms,
        "group": note.group,
        "attempts": note.attempts,
        "last_error": note.last_error,
        "tenant_id": envelope.tenant_id,
        "run_id": envelope.run_id,
        "key": message.key,
        "value": message.value,
    }


def _queue_row(letter: "Record") -> dict[str, object]:
    meta = letter.meta or {}
    row = {"seq": letter.seq, "ts": letter.ts, "deliveries": meta.get(f"{_STAMP}deliveries")}
    return row | {"source_seq": meta.get(f"{_STAMP}src_seq"), "tag": letter.tag, "data": letter.data}


@dlq.command("redrive")
@served
def redrive(
    client: "Client",
    source: Source,
    *,
    of_group: Annotated[str | None, typer.Option("--group", help="Only messages that failed in this group.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only messages of this tenant.")] = None,
    reason: Annotated[str | None, typer.Option(help="Only messages whose last error contains this text.")] = None,
    run_id: Annotated[str | None, typer.Option("--run", help="Only messages of this run.")] = None,
    before_ms: Annotated[
        int | None, typer.Option(help="Only messages dead-lettered before this time (Unix ms).")
    ] = None,
    after_ms: Annotated[
        int | None, typer.Option(help="Only messages dead-lettered at or after this time (Unix ms).")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of letters to move (the oldest).")] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Maximum number of letters per second.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print how many there are.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Move dead letters back to the topic or queue where they failed, and wait until all are moved."""
    chosen: dict[str, Any] = {"tenant_id": tenant, "reason_contains": reason, "run_id": run_id}
    chosen |= {"before_ms": before_ms, "after_ms": after_ms}
    wanted = {name: value for name, value in chosen.items() if value is not None}
    if not dry_run:
        confirm(f"Move dead letters back to {source}?", yes=yes)
    target = _target_of(client, source)
    if target is None:
        body = {"topic": source, "filter": wanted, "limit": limit, "rate_per_s": rate, "group": of_group}
        done = _redriven(client, {name: value for name, value in body.items() if value}, dry_run=dry_run)
    elif wanted or of_group or rate:
        raise CommandError(f"{source} is a queue; of the filters and rates, a queue takes only --limit", ExitCode.USAGE)
    else:
        done = _requeued(client, source, target, limit, dry_run=dry_run)
    show({"source": source, **done}, as_json=as_json)
    if done["failed"]:
        raise CommandError(f"{done['failed']} dead letters could not be moved; they are still dead letters")


def _redriven(client: "Client", body: dict[str, Any], *, dry_run: bool) -> dict[str, Any]:
    """Let the server redrive the letters, and wait until it is done."""
    asked = ask(client, "POST", _REDRIVE, RedriveAsked, body={**body, "dry_run": dry_run})
    if dry_run:
        return {"state": "dry_run", "matched": asked.matched, "moved": 0, "failed": 0}

    async def watch() -> RedriveCommand:
        with progress("redriving", asked.matched) as tell:
            while True:
                job = ask(client, "GET", f"{_REDRIVE}/{asked.job_id}", RedriveCommand)
                tell(job.moved + job.failed)
                if job.state != "running":
                    return job
                await asyncio.sleep(_POLL_S)

    job = asyncio.run(watch())
    return {"state": job.state, "matched": job.matched, "moved": job.moved, "failed": job.failed}


def _requeued(client: "Client", queue: str, target: str, limit: int | None, *, dry_run: bool) -> dict[str, Any]:
    """Move the dead letters of a queue, oldest first. With `dry_run`, only count them."""
    letters, held = client.topic(target), _count(client, target)
    matched, moved = min(held, limit or held), 0
    with progress("redriving", matched) as tell:
        while moved < matched and not dry_run:
            page = letters.diff(0, limit=min(_PAGE, matched - moved)).records
            if not page:
                break
            others = [letter for letter in page if (letter.meta or {}).get(f"{_STAMP}from") != queue]
            if others:
                raise CommandError(
                    f"record {others[0].seq} of {target} is not a dead letter of {queue}; move such records by hand"
                )
            key = f"redrive:{target}:{page[0].ts}:{page[0].seq}-{page[-1].seq}"
            client.topic(queue).write([_revived(letter) for letter in page], idempotency_key=key)
            letters.delete_records(before_seq=page[-1].seq + 1)
            moved += len(page)
            tell(moved)
    return {"state": "dry_run" if dry_run else "done", "matched": matched, "moved": moved, "failed": 0}


def _revived(letter: "Record") -> dict[str, Any]:
    """Return the job without the fields that were added when it became a dead letter."""
    meta = {name: value for name, value in (letter.meta or {}).items() if not name.startswith(_STAMP)}
    record = {"data": letter.data, "tag": letter.tag, "node": letter.node, "meta": meta or None}
    return {name: value for name, value in record.items() if value is not None or name == "data"}
