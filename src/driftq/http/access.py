"""Who is asking, and what they may do (http-v0 §2)."""

from enum import Flag, auto

from msgspec import Struct

from driftq.errors import ForbiddenError


class Scope(Flag):
    """What a key may be used for."""

    READ = auto()
    WRITE = auto()
    DELETE = auto()
    ADMIN = auto()


NOTHING = Scope(0)
EVERYTHING = Scope.READ | Scope.WRITE | Scope.DELETE | Scope.ADMIN


class Access(Struct, frozen=True):
    """The rights of one key; without keys, of everybody."""

    key_id: int | None = None
    """Which key, in the order they were given; None when there are none."""
    scopes: Scope = EVERYTHING
    prefixes: tuple[str, ...] = ()
    """Beginnings of names; none means any name."""

    def may(self, needed: Scope) -> bool:
        """Does it have every scope of these?"""
        return needed in self.scopes

    def may_name(self, name: str) -> bool:
        """May it touch a topic or router of this name?"""
        return not self.prefixes or name.startswith(self.prefixes)

    def check_name(self, name: str) -> None:
        """Refuse a name in a body that it may not touch. Raises ForbiddenError."""
        if not self.may_name(name):
            raise ForbiddenError("this key may not use that name", detail={"topic": name})

    def check(self, needed: Scope) -> None:
        """Refuse what it may not do. Raises ForbiddenError."""
        if not self.may(needed):
            raise ForbiddenError("this key may not do that")


FULL = Access()
STRANGER = Access(-1, NOTHING)
"""Whoever has no known key, where the handler says who may come in."""
