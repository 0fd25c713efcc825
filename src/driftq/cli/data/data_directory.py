"""`driftq inspect`, `verify` and `repair`: work on a data directory without its server."""

import asyncio
import getpass
import os
import re
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from msgspec import structs

from driftq.cli.exits import CommandError, ExitCode
from driftq.cli.output import Json, note, progress, show, show_rows
from driftq.config import Settings, read_settings
from driftq.errors import InvalidRequestError, TopicNotFoundError
from driftq.offline.directory_lock import check_directory, held
from driftq.offline.file_contents import files, inside
from driftq.offline.findings import Finding, VerificationReport
from driftq.offline.repair.accept_loss import accept_loss
from driftq.offline.repair.repair import Repair
from driftq.offline.verification import Verification
from driftq.server import Server
from driftq.storage.layout import Layout
from driftq.system.clock import SystemClock
from driftq.system.disk import OsDisk, keep_private
from driftq.system.machine import read_boot_id
from driftq.system.runtime import AsyncioRuntime

DataDir = Annotated[
    str | None, typer.Option(metavar="DIR", help="Data directory. Default: DRIFTQ_DATA_DIR, else ./driftq-data.")
]
ColdDir = Annotated[
    str | None, typer.Option(metavar="DIR", help="Cold directory, if the server has one. Default: DRIFTQ_COLD_DIR.")
]

_FINDING = ("verdict", "file", "offset", "topic_id", "first_seq", "last_seq", "what")
_FILE = ("file", "kind", "bytes", "items", "records", "holds")


def settings_of(data_dir: str | None, cold_dir: str | None) -> Settings:
    """Return the settings of the server that a directory belongs to. Raise StartError if they are invalid.

    New files of this process get the modes that the server would give them.
    """
    given = {"data_dir": data_dir, "cold_dir": cold_dir}
    settings = read_settings(os.environ, {name: value for name, value in given.items() if value is not None})
    keep_private(group_read=settings.group_read)
    return settings


def layout_of(settings: Settings) -> Layout:
    """Return the data and cold directories of `settings` on the real disk."""
    return Layout(OsDisk(), settings.data_dir, settings.cold_dir)


def inspect(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Files to show frame by frame or block by block."),
    ] = None,
    *,
    data_dir: DataDir = None,
    cold_dir: ColdDir = None,
    as_json: Json = False,
) -> None:
    """Show what the files of a data directory contain. Takes no lock, so a server may be running on it."""
    layout = layout_of(settings_of(data_dir, cold_dir))
    if not paths:
        check_directory(layout)
        show_rows(list(files(layout)), _FILE, as_json=as_json)
        return
    try:
        rows = [{"file": str(path), **row} for path in paths for row in inside(layout.disk, str(path))]
    except OSError as error:
        raise CommandError(f"{error.filename} cannot be read: {error.strerror}", ExitCode.BAD_INPUT) from None
    fields = list(dict.fromkeys(chain.from_iterable(rows)))
    show_rows(rows, fields if len(paths) > 1 else fields[1:], as_json=as_json)


def verify(
    *,
    data_dir: DataDir = None,
    cold_dir: ColdDir = None,
    after_crash: Annotated[
        bool,
        typer.Option("--after-crash", help="Ignore what a crash alone can leave, as the server does at its start."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Read every byte of a data directory and list what is wrong with it. Exits with code 7 if anything is wrong."""
    layout = layout_of(settings_of(data_dir, cold_dir))
    with held(layout):
        report = _read(layout)
    wrong = report.wrong(after_crash=after_crash)
    _show_report(report, wrong, as_json=as_json)
    if wrong:
        note(f"{len(wrong)} problems found; `driftq repair` repairs what can be repaired")
        raise typer.Exit(ExitCode.DAMAGED)


def _read(layout: Layout) -> VerificationReport:
    work = Verification(layout)
    with progress("verifying", work.total, in_bytes=True) as tell:
        return work.run(tell)


def _show_report(report: VerificationReport, wrong: list[Finding], *, as_json: bool) -> None:
    facts = {name: value for name, value in structs.asdict(report).items() if name != "findings"}
    findings = [{name: getattr(found, name) for name in _FINDING} for found in report.findings]
    if as_json:
        show({"ok": not wrong, **facts, "findings": findings}, as_json=True)
        return
    show({"ok": not wrong, **facts}, as_json=False)
    if findings:
        show_rows(findings, _FINDING, as_json=False)


def repair(
    *,
    data_dir: DataDir = None,
    cold_dir: ColdDir = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Repair. Without it, problems are only listed.")] = False,
    lost: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--accept-loss",
            metavar="TOPIC FROM..TO",
            help="Mark records as lost whose file no longer exists, so that the server starts without it.",
        ),
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who accepts the loss. Default: the current user.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Repair a damaged data directory: keep every record that can be read, and move the original files to a folder."""
    settings = settings_of(data_dir, cold_dir)
    layout = layout_of(settings)
    if lost is not None:
        _accept_loss(layout, *lost, by or getpass.getuser(), as_json=as_json)
        return
    if not yes:
        with held(layout):
            report = _read(layout)
        wrong = report.wrong()
        _show_report(report, wrong, as_json=as_json)
        if wrong:
            note("nothing was changed; --yes repairs and keeps the originals in a folder damaged-<seconds>")
            raise typer.Exit(ExitCode.DAMAGED)
        return
    work = Repair(
        layout,
        SystemClock(),
        lambda: asyncio.run(_start_and_stop(settings)),
        wal_file_bytes=settings.wal_file_bytes,
        tell=lambda step: note(f"{step} …"),
    )
    done = work.run()
    show(structs.asdict(done) | {"lost": [structs.asdict(lost) for lost in done.lost]}, as_json=as_json)
    if done.left:
        raise CommandError("the directory is still damaged after the repair; check the disk", ExitCode.DAMAGED)


def _accept_loss(layout: Layout, topic: str, seqs: str, by: str, *, as_json: bool) -> None:
    found = re.fullmatch(r"(\d{1,19})\.\.(\d{1,19})", seqs)
    if found is None or int(found[1]) > int(found[2]):
        raise CommandError(
            f"{seqs!r} is not a range of seqs; write it as FROM..TO, for instance 1..1000", ExitCode.USAGE
        )
    try:
        accepted = accept_loss(layout, SystemClock(), topic, int(found[1]), int(found[2]), by)
    except (InvalidRequestError, TopicNotFoundError) as error:
        raise CommandError(f"nothing was changed: {error.message}") from None
    show(structs.asdict(accepted), as_json=as_json)


async def _start_and_stop(settings: Settings) -> None:
    runtime = AsyncioRuntime(asyncio.get_running_loop())
    server = Server(
        settings, OsDisk(), SystemClock(), runtime, boot_id=read_boot_id(), pid=os.getpid(), missing_is_lost=True
    )
    await runtime.future(server.close())
