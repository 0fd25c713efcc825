"""Access rights of the caller of a request (http-v0 §2)."""

from enum import Flag, auto

from msgspec import Struct

from driftq.errors import ForbiddenError


class Scope(Flag):
    """The operations that an API key may be used for."""

    READ = auto()
    WRITE = auto()
    DELETE = auto()
    ADMIN = auto()


NOTHING = Scope(0)
EVERYTHING = Scope.READ | Scope.WRITE | Scope.DELETE | Scope.ADMIN


class Access(Struct, frozen=True):
    """The rights of one API key. A server without keys gives every caller full rights."""

    key_id: int | None = None
    """Position of the key in the configured list; None when the server has no keys."""
    scopes: Scope = EVERYTHING
    prefixes: tuple[str, ...] = ()
    """Allowed prefixes of topic and router names; an empty tuple allows every name."""

    def may(self, needed: Scope) -> bool:
        """Whether the key has every scope in `needed`."""
        return needed in self.scopes

    def may_name(self, name: str) -> bool:
        """Whether the key may use a topic or router of this name."""
        return not self.prefixes or name.startswith(self.prefixes)

    def check_name(self, name: str) -> None:
        """Raise ForbiddenError if the key may not use this name, which came from a request body."""
        if not self.may_name(name):
            raise ForbiddenError("this key may not use that name", detail={"topic": name})

    def check(self, needed: Scope) -> None:
        """Raise ForbiddenError unless the key has every scope in `needed`."""
        if not self.may(needed):
            raise ForbiddenError("this key does not have the required scope")


FULL = Access()
STRANGER = Access(-1, NOTHING)
"""A caller without a known key; passed only to handlers that decide themselves what such a caller may do."""
