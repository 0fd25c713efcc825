"""The frames of routers and their section of a checkpoint, as msgpack arrays: fields may be added at the end.

ROUTER and ROUTER_DELETE are frames of the source, so they are in order with its records. ROUTER_MARK is a frame of the
dest. Each frame contains the head of its topic when it was made; replay recreates copies up to that head.
"""

from msgspec import Struct

from driftq.model.router_spec import RouterSpec

ROUTER = 48
ROUTER_DELETE = 49
ROUTER_MARK = 50


class RouterFrame(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind ROUTER: creates or changes a router. It applies to records after `source_head`."""

    number: int
    name: str
    dest_id: int
    source_head: int
    dest_base: int
    created_ts: int
    spec: RouterSpec


class RouterDeleteBody(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind ROUTER_DELETE: the router has passed the source up to `cursor`, and goes no further."""

    number: int
    cursor: int
    source_head: int


class RouterMarkBody(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind ROUTER_MARK: when dest was at `dest_head`, these routers (by number) were at these cursors.

    After that head, `slots` seqs are empty, for records that the source lost. `forwarded` is what the routers count
    for the slots, or for copies that were logged before this frame. Seqs after that head and up to `raised` are a
    hole: a start raised the head to the reservation, or direct writes were shown and their log write failed.
    """

    dest_head: int
    cursors: list[tuple[int, int]]
    slots: int = 0
    forwarded: list[tuple[int, int]] = []
    raised: int = 0


class RouterCheckpoint(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One router in a checkpoint, with its cursors and rules."""

    number: int
    name: str
    source_id: int
    dest_id: int
    dest_base: int
    created_ts: int
    cursor: int
    copied_to: int
    forwarded: int
    specs: list[tuple[int, RouterSpec]]


class Section(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """All routers, and the hops of records that are still to be forwarded."""

    next_number: int
    routers: list[RouterCheckpoint]
    hops: list[tuple[int, list[tuple[int, int, int]]]]
    """Pairs of topic id and ranges of seqs with their hops."""
