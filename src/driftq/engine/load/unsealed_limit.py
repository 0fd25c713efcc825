"""The limit on data that is in no segment file yet (http-v0 §16): blocks in memory, and log that no checkpoint can
free.

A block leaves memory when the segment writer has written it, and a checkpoint waits for that writer too. So while the
writer does not write, every accepted record costs memory and log. At the limit, records are refused with `429`;
deletes, acks and everything else that adds no record are not.

The limit on blocks always applies. The limit on the log applies only while the writer is hung, because more log may
collect during a checkpoint that makes progress.
"""

from collections.abc import Callable

from driftq.engine.state.block_cache import Blocks
from driftq.errors import ThrottledError
from driftq.model.limits import MIB

LIMIT = "unsealed_bytes"
"""The name of the limit in the detail of a refusal."""
_LEAST = 64 * MIB
_RETRY_MS = 1000


class UnsealedLimit:
    """Limits the bytes that wait for the segment writer to the size of the block cache, but at least 64 MiB."""

    def __init__(self, blocks: Blocks, cache_bytes: int, checkpoint_bytes: int, log_bytes: Callable[[], int]) -> None:
        self._blocks = blocks
        self._log_bytes = log_bytes
        self._most = max(_LEAST, cache_bytes)
        self._log_most = checkpoint_bytes + self._most
        self.stuck = False
        """Whether the segment writer is hung, and checkpoints with it."""

    @property
    def size(self) -> int:
        """Return the bytes of blocks that are in no segment file yet."""
        return self._blocks.unwritten_bytes

    def check(self, size: int = 0) -> None:
        """Raise ThrottledError if no more records may be accepted now.

        `size` is given for a commit of staged parts, which may be larger than the limit: it is refused only while the
        writer is hung, because otherwise it is written piece by piece.
        """
        unwritten = self._blocks.unwritten_bytes
        if unwritten <= self._most and not (
            self.stuck and (unwritten + size > self._most or self._log_bytes() > self._log_most)
        ):
            return
        raise ThrottledError(
            f"too much data waits for the segment writer ({LIMIT}={self._most}); try again shortly",
            detail={"limit": LIMIT, "max": self._most},
            retry_after_ms=_RETRY_MS,
        )
