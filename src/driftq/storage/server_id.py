"""`<root>/.driftq.id`: which server's files these are (http-v0 §22.2).

Made once, out of randomness, and the same in every root of a server: a reader that sees a root from another host checks
it before it reads in place. The data directory's decides; a cold root that says something else is told so anew.
"""

import re

from driftq.seam.disk import Disk, Site, read_file, write_fully
from driftq.seam.entropy import Entropy
from driftq.storage.layout import Layout

_BYTES = 16
_ID = re.compile(rb"[0-9a-f]{32}\n")


def settle_server_id(layout: Layout, entropy: Entropy) -> str:
    """The id of this server, on stable storage in every root. Raises OSError."""
    disk = layout.disk
    found = _read(disk, layout.data)
    if found is None:
        found = entropy.token(_BYTES).hex().encode() + b"\n"
        _write(disk, layout.data, found)
    if layout.cold is not None and _read(disk, layout.cold) != found:
        _write(disk, layout.cold, found)
    return found.decode().strip()


def _read(disk: Disk, root: str) -> bytes | None:
    """What a root says, if that is an id."""
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
