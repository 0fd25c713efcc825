"""`.driftq.id`: a file that identifies the server to which a directory belongs (http-v0 §22.2).

The id is random and made once. It is the same in every root of a server: a program that sees a root from another host
checks it before it reads files there. The id in the data directory decides. The cold root, which other hosts may have
mounted, gets the file only when a client is about to receive its path.

The same file in `<cold>/topics` is the mark of the cold tier, written before its first segment. While the server runs,
a tier without the mark is another file system than the one the server uses: no checksum in it proves anything, nothing
is written to it, and nothing in it is removed. A cold directory with the mark of another server refuses the start.
"""

import re

from driftq.errors import ColdUnavailableError, UnrecoverableError
from driftq.storage.layout import Layout
from driftq.system.disk import Disk, Site, read_file, write_fully
from driftq.system.entropy import Entropy
from driftq.system.runtime import Pending, Runtime, SerialWorker

_BYTES = 16
_RETRY_MS = 1000
_ID = re.compile(rb"[0-9a-f]{32}\n")


def settle_server_id(layout: Layout, entropy: Entropy) -> str:
    """Return the id of this server; make it if needed. It is then on stable storage. Raises OSError."""
    disk = layout.disk
    found = _read(disk, layout.data)
    if found is None:
        found = entropy.token(_BYTES).hex().encode() + b"\n"
        _write(disk, layout.data, found)
    return found.decode().strip()


def mark_cold_root(layout: Layout, server_id: str) -> None:
    """Write the server id to the cold root, if there is one, and make it durable. Raises OSError."""
    content = server_id.encode() + b"\n"
    if layout.cold is not None and _read(layout.disk, layout.cold) != content:
        _write(layout.disk, layout.cold, content)


def mark_cold_tier(layout: Layout) -> None:
    """Write the server id next to the topics of the cold tier, and make it durable. Raises OSError."""
    content = _read(layout.disk, layout.data)
    if content is not None and not carries_mark(layout):
        _write(layout.disk, layout.topics_dir(cold=True), content)


def adopt_cold_tier(layout: Layout) -> None:
    """Mark a cold tier that has segments and no mark. Called after recovery has found all it needs. Raises OSError."""
    if layout.cold is not None and layout.topic_ids(cold=True):
        mark_cold_tier(layout)


def carries_mark(layout: Layout) -> bool:
    """Whether the cold tier has the mark of this server: only then can its files be trusted. Raises OSError."""
    return _read(layout.disk, layout.topics_dir(cold=True)) == _read(layout.disk, layout.data)


def is_of_another(layout: Layout) -> bool:
    """Whether the cold directory has the mark of another server. Raises OSError."""
    if layout.cold is None:
        return False
    found = {_read(layout.disk, layout.cold), _read(layout.disk, layout.topics_dir(cold=True))}
    return bool(found - {None, _read(layout.disk, layout.data)})


def check_cold_root(layout: Layout) -> None:
    """Refuse a cold root that has the mark of another server. Raises UnrecoverableError and OSError."""
    if is_of_another(layout):
        raise UnrecoverableError(
            f"{layout.cold} is the cold directory of another server, by its file .driftq.id;"
            " give each server its own cold directory"
        )


class ColdMark:
    """Runs `mark_cold_root` on a thread, once per run of the server."""

    def __init__(self, runtime: Runtime, layout: Layout) -> None:
        self._runtime = runtime
        self._layout = layout
        self._made: Pending[None] | None = None

    def made(self, server_id: str) -> Pending[None]:
        """Return a Pending that settles when the cold root is marked. After a failure, the next call tries again."""
        if self._made is None:
            made = self._made = Pending()
            worker: SerialWorker[str] = self._runtime.worker("driftq-id", lambda ids: self._mark(ids[-1], made))
            worker.put(server_id)
            made.then(lambda _: worker.close())
        return self._made

    def _mark(self, server_id: str, made: Pending[None]) -> None:
        try:
            mark_cold_root(self._layout, server_id)
        except OSError as error:
            failure = ColdUnavailableError(
                f"the cold directory cannot be marked: {error.strerror}", retry_after_ms=_RETRY_MS
            )
            self._runtime.from_thread(lambda: self._failed(made, failure))
        else:
            self._runtime.from_thread(lambda: made.resolve(None))

    def _failed(self, made: Pending[None], failure: ColdUnavailableError) -> None:
        self._made = None
        made.fail(failure)


def _read(disk: Disk, root: str) -> bytes | None:
    """Return the content of a root's id file, or None if it is missing or is not an id."""
    try:
        content = read_file(disk, f"{root}/.driftq.id")
    except FileNotFoundError:
        return None
    return content if _ID.fullmatch(content) else None


def _write(disk: Disk, root: str, content: bytes) -> None:
    file = disk.create(f"{root}/.driftq.id.new")
    try:
        write_fully(file, [content], 0)
        file.sync(Site.SERVER_ID)
    finally:
        file.close()
    disk.rename(f"{root}/.driftq.id.new", f"{root}/.driftq.id")
    disk.sync_dir(root, Site.LAYOUT_DIR)
