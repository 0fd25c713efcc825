"""Who is asking, and what they may do (http-v0 §2)."""

from enum import Flag, auto

from msgspec import Struct


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


FULL = Access()
