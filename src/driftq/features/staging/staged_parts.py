"""Which parts wait, where, and since when: what `features/staging/staging` knows of the files below `stage/`.

Invariant: what waits counts once against the server's bytes (`Quota.reserved`), from `install` to `take`.
"""

from collections import OrderedDict
from collections.abc import Container, Iterable
from typing import NamedTuple

from msgspec import Struct

from driftq.engine.load.quota import Quota

Owner = tuple[int, str]
"""A topic's id and a writer."""


class PartAddress(NamedTuple):
    """Where a part waits, below its owner."""

    batch: int
    part: int
    attempt: int
    chunk: int


class StagedPart(Struct, frozen=True):
    """One that waits. Its number is that of its file, and grows: of two at one address the higher one counts."""

    number: int
    owner: Owner
    address: PartAddress
    payload: int
    staged_ts: int


class Parts:
    """All of them."""

    def __init__(self) -> None:
        self.quota: Quota
        """There once the engine is; before that nothing waits."""
        self._owned: dict[Owner, dict[PartAddress, StagedPart]] = {}
        self._by_age: OrderedDict[int, StagedPart] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_age)

    def of(self, owner: Owner) -> dict[PartAddress, StagedPart]:
        """An owner's."""
        return self._owned.get(owner, {})

    def up_to(self, owner: Owner, batch: int) -> list[StagedPart]:
        """An owner's with a batch up to this one."""
        return [part for part in self.of(owner).values() if part.address.batch <= batch]

    def of_topic(self, topic_id: int) -> list[StagedPart]:
        """A topic's."""
        return [part for owner, owned in self._owned.items() if owner[0] == topic_id for part in owned.values()]

    def expired(self, oldest_kept: int, pinned: Container[Owner]) -> list[StagedPart]:
        """Those staged at this moment or before, but for owners whose parts must stay."""
        found = []
        for part in self._by_age.values():
            if part.staged_ts > oldest_kept:
                break
            if part.owner not in pinned:
                found.append(part)
        return found

    def install(self, part: StagedPart) -> list[int]:
        """One more. Returns the file that is not needed any more: of what it replaces, or its own if it comes late."""
        before = self.of(part.owner).get(part.address)
        if before is not None and before.number > part.number:
            return [part.number]
        replaced = [] if before is None else self.take([before])
        self._owned.setdefault(part.owner, {})[part.address] = part
        self._by_age[part.number] = part
        self.quota.reserved += part.payload
        return replaced

    def take(self, parts: Iterable[StagedPart]) -> list[int]:
        """These wait no more. Returns their files."""
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
