"""Backups of the running server (an addition to http-v0). They need a key with the `admin` scope and no prefixes.

The operator decides where backups go: into the directory given by `--backup-dir`, or one below it. A server without
that setting makes no backups, because a request that names any directory could write where only the server may.
"""

import os

from msgspec import Struct
from msgspec.json import Decoder

from driftq.errors import ForbiddenError, InternalError, InvalidRequestError
from driftq.features.backup.backups import Backup
from driftq.http.access import Scope
from driftq.http.reply import Reply, json_reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v0.bodies import decode_body, since_ms
from driftq.model.v0_additions import BackupList, BackupRow, BackupState
from driftq.model.v0_answers import Performance
from driftq.server import Server
from driftq.system.hang_guard import Patience

_BACKUPS = "/v0/backups"
_LOOP_PATIENCE_S = 0.5
"""How long the loop waits for a path to be resolved. After a timeout it does not wait again until that call ends."""


class BackupBegin(Struct):
    """The body of `POST /v0/backups`."""

    to: str | None = None
    """The target directory on the server's machine."""


_BEGIN = Decoder(BackupBegin)


class BackupEndpoints:
    """Starts, lists and reports backups: the handlers of `/v0/backups`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._backups = server.backups
        self._body_bytes_max = server.settings.limits.body_bytes_max
        self._patience = Patience(_LOOP_PATIENCE_S)

    def routes(self) -> list[Route]:
        """Return the routes of `/v0/backups`."""
        return [
            Route("POST", _BACKUPS, self.begin, Scope.ADMIN),
            Route("GET", _BACKUPS, self.list, Scope.ADMIN),
            Route("GET", f"{_BACKUPS}/:backup", self.get, Scope.ADMIN),
        ]

    def begin(self, request: Request) -> Reply:
        """Start a backup and answer `202`; `get` reports its progress."""
        _check_whole(request)
        body = decode_body(_BEGIN, request, body_bytes_max=self._body_bytes_max, optional=True)
        try:
            directory = self._patience.call(lambda: self._directory(body.to), body.to or "the backup directory")
        except TimeoutError as error:
            raise InternalError(f"{error.filename} cannot be used: {error.strerror}") from error
        backup = self._backups.begin(directory, self._server.server_id)
        return json_reply(202, BackupState(_row(backup), self._figures(request)))

    def list(self, request: Request) -> Reply:
        """List the backups made since the server started."""
        _check_whole(request)
        rows = [_row(backup) for backup in self._backups.all.values()]
        return json_reply(200, BackupList(rows, self._figures(request)))

    def get(self, request: Request) -> Reply:
        """Report the state and the progress of one backup."""
        _check_whole(request)
        backup = self._backups.get(request.params[0])
        return json_reply(200, BackupState(_row(backup), self._figures(request)))

    def _directory(self, to: str | None) -> str:
        """Return the real path of the target. Raise InvalidRequestError or ForbiddenError if it is not allowed."""
        root = self._server.settings.backup_dir
        if root is None:
            raise InvalidRequestError("this server makes no backups; start it with --backup-dir DIR")
        if to is None:
            return os.path.realpath(root)
        if not os.path.isabs(to) or "\0" in to:
            raise InvalidRequestError("`to` must be an absolute path on the server's machine")
        path = os.path.realpath(to)
        if os.path.commonpath([path, os.path.realpath(root)]) != os.path.realpath(root):
            raise ForbiddenError("`to` must be the server's --backup-dir or a directory below it")
        if any(os.path.commonpath([path, own]) == own for own in self._server.real_roots):
            raise InvalidRequestError("`to` must not be inside the server's own directories")
        return path

    def _figures(self, request: Request) -> Performance:
        return Performance(since_ms(request.began_ns, self._server.clock.monotonic_ns()))


def _check_whole(request: Request) -> None:
    """Raise ForbiddenError if the key is limited to prefixes: a backup contains every topic."""
    if request.access.prefixes:
        raise ForbiddenError("backups need a key without prefixes")


def _row(backup: Backup) -> BackupRow:
    figures = backup.figures
    return BackupRow(
        backup.id,
        backup.to,
        backup.state,
        backup.began_ts,
        backup.taken_ts,
        backup.ended_ts,
        figures.bytes,
        figures.done_bytes,
        figures.copied_bytes,
        figures.files,
        figures.copied_files,
        backup.damaged,
        backup.error,
    )
