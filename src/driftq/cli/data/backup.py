"""`driftq backup` copies a running server; `driftq restore` makes a new data directory from a backup."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import structs

from driftq.cli.data.data_directory import ColdDir, settings_of
from driftq.cli.exits import CommandError, ExitCode
from driftq.cli.output import Json, note, progress, show, show_rows
from driftq.cli.server_access import KeyFile, Url, connected
from driftq.features.backup.backup_files import BackupManifest, read_manifests
from driftq.features.backup.restore import Restore
from driftq.storage.layout import Layout
from driftq.system.disk import OsDisk
from driftq.system.entropy import SystemEntropy

if TYPE_CHECKING:
    from driftq.client import Client
    from driftq.model.v0_additions import BackupRow

_POLL_S = 0.1


def backup(
    *,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="DIR", help="Directory on the server's machine. Default: the server's --backup-dir."
        ),
    ] = None,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Back up all topics of a running server, as they are at one moment. Copies only files it does not have."""
    with connected(url, key_file) as client:
        begun = client.begin_backup(None if to is None else os.path.abspath(to)).backup
        with progress("backing up", in_bytes=True) as tell:
            done = asyncio.run(_followed(client, begun, tell))
    show(structs.asdict(done), as_json=as_json)
    if done.state != "done":
        raise CommandError(f"the backup failed: {done.error}")
    if done.damaged:
        raise CommandError(
            "the backup is damaged, because the server's files are: stop the server and run `driftq verify`",
            ExitCode.DAMAGED,
        )


async def _followed(client: "Client", backup: "BackupRow", tell: Callable[[int], None]) -> "BackupRow":
    while backup.state not in ("done", "failed"):
        await asyncio.sleep(_POLL_S)
        backup = client.backup(backup.id).backup
        tell(backup.done_bytes)
    return backup


def restore(
    *,
    source: Annotated[Path, typer.Option("--from", metavar="DIR", help="Directory that contains the backups.")],
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory to create; it must be new or empty.", show_default=False),
    ] = None,
    cold_dir: ColdDir = None,
    backup_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Id of the backup. Default: the newest.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the backups and restore nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Make a data directory from a backup and check every byte. A server can be started on it."""
    disk = OsDisk()
    try:
        if listing:
            show_rows([_listed(one) for one in read_manifests(disk, str(source))], as_json=as_json)
            return
        if data_dir is None:
            raise CommandError("missing --data-dir DIR, a new or empty directory to restore into", ExitCode.USAGE)
        settings = settings_of(str(data_dir), cold_dir)
        layout = Layout(disk, settings.data_dir, settings.cold_dir)
        work = Restore(disk, str(source), layout, SystemEntropy(), backup_id)
        with progress("restoring", work.bytes, in_bytes=True) as tell:
            done = work.run(tell)
    except OSError as error:
        raise CommandError(f"{error.filename or source}: {error.strerror}") from None
    show(structs.asdict(done), as_json=as_json)
    note(f"start it with: driftq serve --data-dir {data_dir}")


def _listed(manifest: BackupManifest) -> dict[str, object]:
    sizes = [stored.content.bytes for stored in manifest.files]
    return {
        "id": manifest.id,
        "taken_ts": manifest.taken_ts,
        "topics": len(manifest.topics),
        "files": len(sizes),
        "bytes": sum(sizes),
        "version": manifest.version,
        "damaged": len(manifest.damaged),
    }
