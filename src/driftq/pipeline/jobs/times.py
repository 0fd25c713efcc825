"""Times as users write them."""

from datetime import UTC, datetime

from driftq.pipeline.errors import PipelineError


def to_ms(text: str, flag: str) -> int:
    """Unix ms of an ISO time (UTC where it has no zone) or of a number. Raises PipelineError, with the flag."""
    if text.isdecimal():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise PipelineError(f"{flag} {text!r} is no time: write 2026-11-16T12:00:00Z, or Unix milliseconds") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)
