"""`driftq queue work`: run a command for every job, several at a time, until stopped.

A command gets the job's data as JSON on standard input, and the rest in its environment (`DRIFTQ_JOB_…`). Its exit code
decides: 0 acks the job, the code of `--give-up-code` makes it a dead letter, any other code returns it for a retry.
Leases are extended while commands run. After SIGTERM or SIGINT, running commands may finish; they run in their own
sessions, so Ctrl-C in the terminal does not reach them.
"""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct, json, structs

from driftq.cli.exits import CommandError, ExitCode
from driftq.cli.output import Json, note, show
from driftq.cli.server_access import TopicName, served

if TYPE_CHECKING:
    from driftq.client import AsyncTopic, AsyncWorker, Client, Job
    from driftq.model.v0_answers import TopicState

_LOOK_S = 0.2
"""How often the queue is checked for remaining jobs, in seconds."""


Node = Annotated[str | None, typer.Option(help="Name of this worker. Default: cli@ and the host name.")]
LeaseMs = Annotated[int | None, typer.Option(min=100, help="Lease of a job in ms. Default: that of the queue.")]


def worker_name(node: str | None) -> str:
    """Return the worker's name. It is always the same, so that one command can settle jobs that another one took."""
    return node or f"cli@{socket.gethostname()}"[:128]


class WorkOrder(Struct, frozen=True):
    """Settings of one `driftq queue work`."""

    queue: str
    command: list[str]
    retry_ms: int | None
    give_up_code: int | None
    until_empty: bool
    limit: int | None
    quiet: bool
    """Whether commands must not write to standard output, because it is reserved for the summary."""


@served
def work(
    client: "Client",
    name: TopicName,
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="Command to run for each job, after `--`.")
    ],
    *,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-j", min=1, max=1000, help="Maximum number of commands at the same time.")
    ] = 1,
    lease_ms: LeaseMs = None,
    retry_ms: Annotated[
        int | None,
        typer.Option(min=0, help="Delay in ms before a failed job is retried. Default: exponential backoff."),
    ] = None,
    give_up_code: Annotated[
        int | None, typer.Option(min=1, max=255, help="Exit code that sends the job straight to the dead-letter topic.")
    ] = None,
    until_empty: Annotated[bool, typer.Option("--until-empty", help="Stop when the queue is empty.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many jobs.")] = None,
    drain_s: Annotated[
        float, typer.Option(min=0, help="How long running commands may take to finish after a stop, in seconds.")
    ] = 30.0,
    node: Node = None,
    as_json: Json = False,
) -> None:
    """Run a command for every job of a queue: the data is on standard input, exit code 0 acks the job.

    Example: driftq queue work thumbnails -j 4 -- python make_thumbnail.py
    """
    if shutil.which(command[0]) is None:
        raise CommandError(f"command {command[0]!r} does not exist", ExitCode.USAGE)
    job = WorkOrder(name, command, retry_ms, give_up_code, until_empty, limit, as_json)
    state = client.topic(name).info(touch=False)
    lease = lease_ms or lease_of(state)
    if give_up_code is not None and state.config.dead_letter is None:
        what = f"--give-up-code needs a dead-letter topic, and {name} has none"
        raise CommandError(f"{what}; omit the option, or set dead_letter of the queue", ExitCode.USAGE)
    stats = asyncio.run(_run(client, job, concurrency, lease, drain_s, worker_name(node)))
    show({"topic": name, **stats}, as_json=as_json)


def lease_of(state: "TopicState") -> int:
    """Return the default lease of a queue in ms. Raise CommandError if the topic is not a queue."""
    if state.queue is None:
        raise CommandError(f"{state.topic} is not a queue; create one with `driftq topic create NAME --type queue`")
    return state.config.lease_ms


async def _run(
    client: "Client", job: WorkOrder, concurrency: int, lease_ms: int, drain_s: float, owner: str
) -> dict[str, int]:
    from driftq.client import AsyncWorker

    async with client.asynchronous() as twin:
        commands = JobCommands(job)
        worker = AsyncWorker.queue(
            twin, job.queue, commands.handle, concurrency=concurrency, lease_ms=lease_ms, drain_s=drain_s, owner=owner
        )
        commands.when_all_began = worker.stop
        looking = asyncio.create_task(_stop_when_empty(twin.topic(job.queue), worker)) if job.until_empty else None
        try:
            await worker.run()
        finally:
            if looking is not None:
                looking.cancel()
        return structs.asdict(worker.stats)


async def _stop_when_empty(topic: "AsyncTopic", worker: "AsyncWorker[Job]") -> None:
    from driftq.client import ClientError

    while True:
        with suppress(ClientError):
            if not (await topic.info(touch=False)).count:
                worker.stop()
                return
        await asyncio.sleep(_LOOK_S)


class JobCommands:
    """Handler of the worker: runs one command for each job."""

    def __init__(self, work: WorkOrder) -> None:
        self._work = work
        self._began = 0
        self.when_all_began: Callable[[], None] = lambda: None

    async def handle(self, job: "Job") -> None:
        """Run the command for a job. Raise Retry or DeadLetter according to its exit code."""
        from driftq.client import DeadLetter, Retry

        work = self._work
        if work.limit is not None and self._began >= work.limit:
            raise Retry(after=0)
        self._began += 1
        if self._began == work.limit:
            self.when_all_began()
        code = await self._exit_code(job)
        if code == 0:
            return
        note(f"job {job.seq}: {work.command[0]} exited with {code}, delivery {job.deliveries}")
        if code == work.give_up_code:
            raise DeadLetter(f"{work.command[0]} exited with {code}")
        raise Retry(after=None if work.retry_ms is None else work.retry_ms / 1000, reason=f"exited with {code}")

    async def _exit_code(self, job: "Job") -> int:
        child = await asyncio.create_subprocess_exec(
            *self._work.command,
            stdin=subprocess.PIPE,
            stdout=sys.stderr if self._work.quiet else None,
            env=command_environment(os.environ, self._work.queue, job),
            start_new_session=True,  # Ctrl-C must not reach the command
        )
        try:
            await child.communicate(json.encode(job.data) + b"\n")
        except asyncio.CancelledError:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
            raise
        return child.returncode or 0


_SECRETS = ("DRIFTQ_API_KEY", "DRIFTQ_API_KEYS")


def command_environment(inherited: Mapping[str, str], queue: str, job: "Job") -> dict[str, str]:
    """Return the environment of a command: what this process has except API keys, and variables of the job.

    A variable cannot contain a NUL character; one in a tag becomes U+FFFD.
    """
    kept = {name: value for name, value in inherited.items() if name not in _SECRETS}
    return kept | {name: value.replace("\0", "\ufffd") for name, value in _job_variables(queue, job).items()}


def _job_variables(queue: str, job: "Job") -> dict[str, str]:
    facts = {"TOPIC": queue, "SEQ": str(job.seq), "TS": str(job.ts), "DELIVERIES": str(job.deliveries)}
    facts |= {"TAG": job.tag or "", "META": json.encode(job.meta or {}).decode(), "LEASE_ID": job.lease_id}
    return {f"DRIFTQ_JOB_{name}": value for name, value in facts.items()}
