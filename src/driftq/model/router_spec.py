"""A router: a permanent rule that copies records from one topic to another (http-v0 §11.1)."""

from enum import StrEnum

from msgspec import Struct


class Guarantee(StrEnum):
    """How often a router copies each record."""

    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"


Filter = tuple[str, str, str]
"""A match in its canonical form: `("tag", "Eq", tag)` or `("tag", "Glob", "prefix*")`."""


class RouterSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The definition of a router, with defaults applied."""

    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    filter: Filter | None = None
    allow_cycle: bool = False
    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE


HOPS_MAX = 8
"""A copy that has passed this many routers is not copied again."""
