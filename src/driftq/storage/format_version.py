"""What to say about bytes that check out and that this version does not understand: a newer version wrote them."""

from driftq import __version__
from driftq.errors import NewerFormatError

START_THAT = "start that version"


def newer(what: str, written_by: str) -> NewerFormatError:
    """Return why a start is refused: that version of DriftQ wrote `what`, or a newer one that is not named."""
    by = f"DriftQ {written_by}" if written_by else "a newer version of DriftQ"
    return NewerFormatError(f"{what} was written by {by}; this is DriftQ {__version__}; {START_THAT}")
