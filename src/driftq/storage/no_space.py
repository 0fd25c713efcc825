"""Writes that the operating system refuses for lack of space, and the error that callers get.

Only ENOSPC and EDQUOT count: the disk is full, or the quota of the user, group or directory is. The same call works
again once there is room. Every other failed write is an `InternalError` (http-v0 §19.3).
"""

from errno import EDQUOT, ENOSPC

from driftq.errors import DiskFullError, InternalError

_NO_SPACE = frozenset((ENOSPC, EDQUOT))
MAKE_ROOM = (
    "reads and deletes work; to make room delete topics, delete the oldest records of large topics with `before_seq`,"
    " or lower their caps"
)
"""The calls that free space, for a caller who can make them."""


def is_no_space(error: BaseException | None) -> bool:
    """Whether a call failed because the disk, or a quota, is full."""
    return isinstance(error, OSError) and error.errno in _NO_SPACE


def write_error(what: str, error: OSError) -> InternalError:
    """Return the error for a caller whose write failed. `what` describes it, as in "the log could not be written"."""
    if is_no_space(error):
        return DiskFullError(f"{what}: {error.strerror}; {MAKE_ROOM}")
    return InternalError(f"{what}: {error.strerror}")
