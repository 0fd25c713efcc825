"""The frames of routers and their section of a checkpoint, as msgpack arrays: fields may be added at the end.

ROUTER and ROUTER_DELETE are frames of the source, so that they stand in order with its records. ROUTER_MARK is a frame
of the dest. Each says where the head of its topic was when it was made, for replay to bring it there with copies.
"""

from msgspec import Struct

from driftq.model.router_spec import RouterSpec

ROUTER = 48
ROUTER_DELETE = 49
ROUTER_MARK = 50


class RouterFrame(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind ROUTER: create and update. What it says holds for records behind `source_head`."""

    number: int
    name: str
    dest_id: int
    source_head: int
    dest_base: int
    created_ts: int
    spec: RouterSpec


class RouterDeleteBody(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind ROUTER_DELETE: the router has passed the source up to its cursor, and goes no further."""

    number: int
    cursor: int
    source_head: int


class RouterMarkBody(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind ROUTER_MARK: with dest at this head, these routers, by number, stood at these cursors.

    Behind that head `slots` seqs are empty, for records that source lost. `forwarded` is what the routers count for the
    slots, or for copies that were logged before this frame. `raised` is up to where seqs behind that head
    are a hole: a start raised the head to the reservation, or direct writes were shown and their log write failed.
    """

    dest_head: int
    cursors: list[tuple[int, int]]
    slots: int = 0
    forwarded: list[tuple[int, int]] = []
    raised: int = 0


class RouterCheckpoint(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One router in a checkpoint."""

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
    """All routers, and how many hops records have made that are still to be forwarded."""

    next_number: int
    routers: list[RouterCheckpoint]
    hops: list[tuple[int, list[tuple[int, int, int]]]]
    """Of a topic its id, and ranges of seqs with their hops."""
