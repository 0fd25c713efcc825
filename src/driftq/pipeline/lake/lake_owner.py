"""`<lake>/driftq-lake.json`: which server's topics are in a lake.

Epochs and seqs are counters of a server, and begin again where one begins with an empty directory: two servers in one
lake could not be told apart.
"""

import json
from collections.abc import Iterable

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.lake.delta_tables import Lake
from driftq.pipeline.offsets import OffsetRange

_NOTE = "driftq-lake.json"


def owner_of(lake: Lake) -> str | None:
    """The id of the server; None before anything of one was written."""
    try:
        text = (lake.root / _NOTE).read_bytes()
    except FileNotFoundError:
        return None
    return str(json.loads(text)["server_id"])


def claim(lake: Lake, server_id: str | None) -> None:
    """Make a lake that of a server, which is None where it cannot be known. Raises PipelineError if it is another's."""
    owner = owner_of(lake)
    if owner is None and server_id is not None:
        lake.root.mkdir(parents=True, exist_ok=True)
        fresh = lake.root / f"{_NOTE}.{server_id}"
        fresh.write_text(json.dumps({"server_id": server_id}) + "\n", encoding="utf-8")
        fresh.replace(lake.root / _NOTE)
    elif owner != server_id:
        raise PipelineError(f"{told(owner, server_id)}; take another --lake for this server")


def check_owner(lake: Lake, parts: Iterable[OffsetRange]) -> None:
    """Before a batch is written: the server may have become another while the query ran. Raises PipelineError."""
    for server_id in {part.server_id for part in parts if part.server_id}:
        claim(lake, server_id)


def told(owner: str | None, server_id: str | None) -> str:
    """How two ids that differ are told to people."""
    if server_id is None:
        return f"the lake has topics of server {owner}, and this one has no topic yet that tells whether it is the same"
    return (
        f"the lake has topics of server {owner}, and this is server {server_id}: "
        "its directory is a new one or was restored, and it gives the same seqs to other records"
    )
