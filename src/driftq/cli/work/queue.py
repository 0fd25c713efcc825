"""`driftq queue`: show a queue; take and settle its jobs by hand. `work` is in `cli/work/queue_work`."""

from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import to_builtins

from driftq.cli.exits import CommandError, ExitCode
from driftq.cli.lazy_groups import group
from driftq.cli.output import Json, show, show_rows
from driftq.cli.server_access import TopicName, fields_of, served
from driftq.cli.work.queue_work import LeaseMs, Node, lease_of, work, worker_name

if TYPE_CHECKING:
    from driftq.client import Client, Job

queue = group("Queues: show a queue, take and settle jobs, or run a command for each job.")
queue.command("work")(work)

_JOB = ("$seq", "lease_id", "deadline", "$ts", "deliveries", "$tag", "data", "meta")

Seqs = Annotated[list[int], typer.Argument(metavar="SEQ...", help="Seqs of the jobs.")]
LeaseIds = Annotated[
    list[str] | None,
    typer.Option(
        "--lease-id", help="Lease id of each job, in the order of the seqs; a job with another lease is not settled."
    ),
]


@queue.command("show")
@served
def show_queue(client: "Client", name: TopicName, *, as_json: Json = False) -> None:
    """Show how many jobs are ready, leased and dead-lettered, and the settings of the queue."""
    state = client.topic(name).info(touch=False)
    config, lease_ms = state.config, lease_of(state)
    facts = {"topic": name, **to_builtins(state.queue), "count": state.count, "lease_ms": lease_ms}
    facts |= {"max_deliveries": config.max_deliveries, "dead_letter": config.dead_letter}
    show(facts | {"durability": config.durability, "leases_durable": config.leases_durable}, as_json=as_json)


@queue.command("claim")
@served
def claim(
    client: "Client",
    name: TopicName,
    *,
    most: Annotated[int, typer.Option("--max", min=1, max=1000, help="Maximum number of jobs to take.")] = 1,
    lease_ms: LeaseMs = None,
    node: Node = None,
    as_json: Json = False,
) -> None:
    """Take jobs. Each is leased to this worker until its deadline, or until it is settled."""
    claimed = client.topic(name).claim(most, lease_ms=lease_ms, node=worker_name(node)).claimed
    show_rows([to_builtins(job) for job in claimed], _JOB, as_json=as_json)


@queue.command("ack")
@served
def ack(
    client: "Client",
    name: TopicName,
    seqs: Seqs,
    *,
    lease_id: LeaseIds = None,
    node: Node = None,
    as_json: Json = False,
) -> None:
    """Ack jobs that this worker holds: they are done."""
    answer = client.topic(name).ack(_held(seqs, lease_id), node=worker_name(node))
    show(fields_of(answer), as_json=as_json)
    _tell_skipped(answer.skipped)


@queue.command("nack")
@served
def nack(
    client: "Client",
    name: TopicName,
    seqs: Seqs,
    *,
    delay_ms: Annotated[int, typer.Option(min=0, help="Delay in ms before the jobs are delivered again.")] = 0,
    lease_id: LeaseIds = None,
    node: Node = None,
    as_json: Json = False,
) -> None:
    """Give back jobs that this worker holds, so that they are delivered again."""
    answer = client.topic(name).nack(_held(seqs, lease_id), delay_ms=delay_ms, node=worker_name(node))
    show(fields_of(answer), as_json=as_json)
    _tell_skipped(answer.skipped)


def _held(seqs: list[int], lease_ids: list[str] | None) -> "list[Job]":
    from driftq.client import Job

    if lease_ids and len(lease_ids) != len(seqs):
        raise CommandError("pass --lease-id once for each seq, or not at all", ExitCode.USAGE)
    ids = lease_ids or [""] * len(seqs)
    return [Job(seq, one, 0, 0, 0, None) for seq, one in zip(seqs, ids, strict=True)]


def _tell_skipped(skipped: list[int]) -> None:
    if skipped:
        jobs = ", ".join(map(str, skipped))
        raise CommandError(f"jobs {jobs} are not held by this worker; claim them again", ExitCode.ABSENT)
