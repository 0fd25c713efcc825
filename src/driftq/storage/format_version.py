"""The error for valid bytes that this version does not understand, because a newer version wrote them."""

from driftq import __version__
from driftq.errors import NewerFormatError

START_THAT = "start that version"


def newer(what: str, written_by: str) -> NewerFormatError:
    """Return the error that refuses a start because DriftQ `written_by` wrote `what`; "" means unknown, but newer."""
    by = f"DriftQ {written_by}" if written_by else "a newer version of DriftQ"
    return NewerFormatError(f"{what} was written by {by}; this is DriftQ {__version__}; {START_THAT}")
