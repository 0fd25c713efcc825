"""The bound on what is in no segment file yet (http-v0 §16): blocks in memory, and log that no checkpoint can free.

A block leaves memory when the writer of segments has written it, and a checkpoint waits for that writer too. So while
it does not write, every record that is taken costs memory and log. At the bound records are refused with `429`;
deletes, acks and everything else that brings no record are not.

Blocks are bounded at any time. The log is bounded while the writer is hung, because a checkpoint that is under way and
makes progress may let more log collect than that.
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
    """How many bytes may wait for the writer of segments: as many as the cache has, and at least 64 MiB."""

    def __init__(self, blocks: Blocks, cache_bytes: int, checkpoint_bytes: int, log_bytes: Callable[[], int]) -> None:
        self._blocks = blocks
        self._log_bytes = log_bytes
        self._most = max(_LEAST, cache_bytes)
        self._log_most = checkpoint_bytes + self._most
        self.stuck = False
        """Whether the writer of segments is hung, and checkpoints with it."""

    @property
    def size(self) -> int:
        """Bytes of blocks that are in no segment file yet."""
        return self._blocks.unwritten_bytes

    def check(self, size: int = 0) -> None:
        """Raise ThrottledError if no more records may be taken now.

        `size` is given for what may be larger than the limit, a commit of staged parts: it is refused only while the
        writer is hung, because otherwise it is written piece by piece.
        """
        unwritten = self._blocks.unwritten_bytes
        if unwritten <= self._most and not (
            self.stuck and (unwritten + size > self._most or self._log_bytes() > self._log_most)
        ):
            return
        raise ThrottledError(
            f"{self._most} bytes wait to be written to segment files, which is the limit; try again shortly",
            detail={"limit": LIMIT, "max": self._most},
            retry_after_ms=_RETRY_MS,
        )
