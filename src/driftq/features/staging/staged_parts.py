"""The index of staged parts: which parts wait, at which address, and since when (see `features/staging/staging`).

Invariant: a waiting part counts once against the server's bytes (`Quota.reserved`), from `install` to `take`.
"""

from collections import OrderedDict
from collections.abc import Container, Iterable
from typing import NamedTuple

from msgspec import Struct

from driftq.engine.load.quota import Quota

Owner = tuple[int, str]
"""The id of a topic, and the name of a writer."""


class PartAddress(NamedTuple):
    """The address of a part within its owner."""

    batch: int
    part: int
    attempt: int
    chunk: int


class StagedPart(Struct, frozen=True):
    """A waiting part. `number` is that of its file: of two parts at one address, the higher number counts."""

    number: int
    owner: Owner
    address: PartAddress
    payload: int
    staged_ts: int


class Parts:
    """All waiting parts, by owner and by age."""

    def __init__(self) -> None:
        self.quota: Quota
        """Set when the engine is created; before that no part waits."""
        self._owned: dict[Owner, dict[PartAddress, StagedPart]] = {}
        self._by_age: OrderedDict[int, StagedPart] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_age)

    def of(self, owner: Owner) -> dict[PartAddress, StagedPart]:
        """Return the parts of an owner, by address."""
        return self._owned.get(owner, {})

    def up_to(self, owner: Owner, batch: int) -> list[StagedPart]:
        """Return the parts of an owner up to this batch."""
        return [part for part in self.of(owner).values() if part.address.batch <= batch]

    def of_topic(self, topic_id: int) -> list[StagedPart]:
        """Return the parts of all writers of a topic."""
        return [part for owner, owned in self._owned.items() if owner[0] == topic_id for part in owned.values()]

    def expired(self, oldest_kept: int, pinned: Container[Owner]) -> list[StagedPart]:
        """Return the parts staged at `oldest_kept` or before, except those of pinned owners."""
        found = []
        for part in self._by_age.values():
            if part.staged_ts > oldest_kept:
                break
            if part.owner not in pinned:
                found.append(part)
        return found

    def install(self, part: StagedPart) -> list[int]:
        """Add a part. Return the file to remove: that of the replaced part, or its own if a newer part is there."""
        before = self.of(part.owner).get(part.address)
        if before is not None and before.number > part.number:
            return [part.number]
        replaced = [] if before is None else self.take([before])
        self._owned.setdefault(part.owner, {})[part.address] = part
        self._by_age[part.number] = part
        self.quota.reserved += part.payload
        return replaced

    def take(self, parts: Iterable[StagedPart]) -> list[int]:
        """Remove parts from the index. Return the numbers of their files."""
        numbers = []
        for part in parts:
            owned = self._owned[part.owner]
            del owned[part.address]
            if not owned:
                del self._owned[part.owner]
            del self._by_age[part.number]
            self.quota.reserved -= part.payload
            numbers.append(part.number)
        return numbers
