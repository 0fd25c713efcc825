"""`driftq import driftq-core`: import the log of the Go broker into a data directory that no server has open."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from msgspec import json

from driftq.cli.output import Json, progress
from driftq.config import Settings, read_settings
from driftq.errors import DriftQError
from driftq.offline.driftq_core.core_import import CoreImport, ImportReport
from driftq.server import Server
from driftq.system.clock import SystemClock
from driftq.system.disk import OsDisk, keep_private
from driftq.system.machine import read_boot_id
from driftq.system.runtime import AsyncioRuntime, run


def import_core(
    file: Annotated[Path, typer.Argument(help="Log file of driftq-core (JSON lines).")],
    *,
    data_dir: Annotated[
        str | None, typer.Option(help="Data directory to import into; created if missing. No server may have it open.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Import a log file of driftq-core (the Go broker) into a data directory.

    It contains topics, messages, progress, failures and idempotency outcomes.
    """
    raise typer.Exit(run_import(file, data_dir, as_json=as_json))


def run_import(file: Path, data_dir: str | None, *, as_json: bool) -> int:
    """Import the file and print what was imported. Return the exit code."""
    flags = {} if data_dir is None else {"data_dir": data_dir}
    try:
        settings = read_settings(os.environ, flags)
        keep_private(group_read=settings.group_read)
        with progress("importing", file.stat().st_size, in_bytes=True) as tell:
            report = asyncio.run(_import(file, settings, tell))
    except DriftQError as error:
        sys.stderr.write(f"driftq: {error.message}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"driftq: {file} cannot be read: {error.strerror}\n")
        return 1
    if as_json:
        sys.stdout.write(json.encode(report).decode() + "\n")
    else:
        sys.stdout.write(
            f"{report.messages} messages of {report.topics} topics, progress of {report.groups} groups, "
            f"{report.failures} failures and {report.outcomes} idempotency outcomes imported\n"
        )
    return 0


async def _import(file: Path, settings: Settings, tell: Callable[[int], None]) -> ImportReport:
    runtime = AsyncioRuntime(asyncio.get_running_loop())
    with file.open("rb"):
        pass  # an unreadable file is reported before the data directory is created
    server = Server(settings, OsDisk(), SystemClock(), runtime, boot_id=read_boot_id(), pid=os.getpid())
    try:
        work = CoreImport(server.engine, server.broker, server.registry)
        return await runtime.future(run(work.run(lambda: _lines(file), tell)))
    finally:
        await runtime.future(server.close())


def _lines(file: Path) -> Iterator[bytes]:
    with file.open("rb") as lines:
        yield from lines
