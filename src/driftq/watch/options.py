"""What a reader wants of the topics it follows."""

from msgspec import Struct, structs

from driftq.engine.diff import Query
from driftq.engine.render import Fields
from driftq.model.limits import PAGE_BYTES, PAGE_RECORDS
from driftq.model.tombstone import Reason, Tombstone

_HIDDEN = (Reason.CAP, Reason.TTL, Reason.MIXED)


class Options(Struct, frozen=True, kw_only=True, cache_hash=True):
    """The shape of batches, and which records are in them."""

    limit: int = PAGE_RECORDS
    max_batch_bytes: int = PAGE_BYTES
    nodes: frozenset[bytes] = frozenset()
    tags: bool = False
    meta: bool = True
    data: bool = True
    strong: bool = False
    """Only what is on stable storage?"""
    hides_loss: bool = False
    """Is what cap and TTL took before the first read told as `from_seq_too_old`?"""

    def fields(self) -> Fields:
        """The same for rendering."""
        return Fields(tags=self.tags, meta=self.meta, data=self.data)

    def query(self, cursor: int, up_to: int | None) -> Query:
        """The same for reading after a cursor."""
        return Query(cursor, self.limit, self.nodes, self.max_batch_bytes, up_to)

    def first_loss(self, tombstone: Tombstone) -> Tombstone:
        """Return a loss before the first read as this reader is told of it."""
        if self.hides_loss and tombstone.reason in _HIDDEN:
            return structs.replace(tombstone, reason=Reason.FROM_SEQ_TOO_OLD)
        return tombstone
