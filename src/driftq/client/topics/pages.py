"""Reading a topic page by page (http-v0 §8, §22.1)."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from driftq.client.errors import NotFoundError
from driftq.client.transport.calls import Calls
from driftq.client.transport.plan import Emit, EmitAll, Flow, Plan
from driftq.model.limits import PAGE_BYTES_MAX
from driftq.model.tombstone import Tombstone
from driftq.model.v0_answers import DiffPage, Record

_log = logging.getLogger(__name__)

T = TypeVar("T")

PAGE_RECORDS = 1000
Nodes = str | Sequence[str]


def diff_page(calls: Calls, path: str, *, wait_ms: int = 0, **asked: Any) -> Plan[DiffPage]:
    """Read one page of the topic with this path."""
    body = {"limit": PAGE_RECORDS, "max_batch_bytes": PAGE_BYTES_MAX, "include_tags": True, "wait_ms": wait_ms, **asked}
    return calls.json("POST", f"{path}/diff", DiffPage, body=body, wait_s=wait_ms / 1000)


def read_pages(
    calls: Calls,
    path: str,
    shape: Callable[[Record], T],
    *,
    from_seq: int | None = None,
    from_ts: int | None = None,
    epoch: int | None = None,
    node: Nodes | None = None,
    may_be_absent: bool = False,
) -> Flow[T | Tombstone]:
    """Yield `shape(record)` for all records up to the head at the time of the first page, and a tombstone for each gap.

    `epoch` is the epoch that `from_seq` belongs to. The second and later pages send the epoch of the page before, so
    that the server reports a topic that was deleted and created again in between. With `may_be_absent`, a topic that
    does not exist has no records; a dead-letter topic, for example, is created by its first letter.
    """
    try:
        page = yield from diff_page(calls, path, from_seq=from_seq, from_ts=from_ts, epoch=epoch, node=node)
    except NotFoundError:
        if may_be_absent:
            return
        raise
    until = page.head_seq
    if from_seq is not None and from_seq > until:
        _log.warning("topic %s: %s", page.topic, above_the_head(from_seq, until))
    while True:
        if page.tombstone is not None:
            yield Emit(page.tombstone)
        records = page.records
        if records and records[-1].seq > until:
            records = [record for record in records if record.seq <= until]
        yield EmitAll(cast("list[T]", records) if shape is as_it_is else map(shape, records))
        if page.next_from_seq >= until:
            return
        page = yield from diff_page(calls, path, from_seq=page.next_from_seq, epoch=page.epoch, node=node)


def above_the_head(cursor: int, head: int) -> str:
    """Return the message for a cursor that is above the last seq of the topic."""
    return f"cursor {cursor} is above the head {head}"


def as_it_is(record: Record) -> Record:
    """Return the record unchanged: the `shape` for callers that want records."""
    return record
