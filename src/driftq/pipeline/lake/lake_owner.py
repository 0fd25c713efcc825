"""`<lake>/driftq-lake.json`: the id of the server whose topics are in a lake.

Epochs and seqs are counters of one server, and restart if the server starts with an empty directory. So the records of
two servers in one lake could not be distinguished.
"""

import json
from collections.abc import Iterable

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.lake.delta_tables import Lake
from driftq.pipeline.offsets import OffsetRange

_NOTE = "driftq-lake.json"


def owner_of(lake: Lake) -> str | None:
    """Return the id of the lake's server, or None before anything was written."""
    try:
        text = (lake.root / _NOTE).read_bytes()
    except FileNotFoundError:
        return None
    return str(json.loads(text)["server_id"])


def claim(lake: Lake, server_id: str | None) -> None:
    """Assign a lake to a server; None is an unknown id. Raises PipelineError if the lake has another owner."""
    owner = owner_of(lake)
    if owner is None and server_id is not None:
        lake.root.mkdir(parents=True, exist_ok=True)
        fresh = lake.root / f"{_NOTE}.{server_id}"
        fresh.write_text(json.dumps({"server_id": server_id}) + "\n", encoding="utf-8")
        fresh.replace(lake.root / _NOTE)
    elif owner != server_id:
        raise PipelineError(f"{told(owner, server_id)}; use another --lake for this server")


def check_owner(lake: Lake, parts: Iterable[OffsetRange]) -> None:
    """Check before a batch that the server has not been replaced while the query ran. Raises PipelineError."""
    for server_id in {part.server_id for part in parts if part.server_id}:
        claim(lake, server_id)


def told(owner: str | None, server_id: str | None) -> str:
    """Return the text that explains to users that two ids differ."""
    if server_id is None:
        return f"the lake has topics of server {owner}; this server has no topic yet, so its id is unknown"
    return (
        f"the lake has topics of server {owner}, but this is server {server_id}: "
        "its data directory is new or was restored, and its seqs belong to other records"
    )
