"""Segments that a start needs and cannot read: the error that names all of them, and the next steps.

Unavailable segments are not lost (`engine/state/block_cache`), so the start changes nothing. The error contains the
commands with which an operator accepts the loss, ready to be typed: adjacent segments are one range, which
`--accept-loss` takes at once.
"""

from collections.abc import Sequence
from shlex import quote
from typing import NamedTuple

from driftq.engine.state.topic import Topic
from driftq.errors import UnrecoverableError
from driftq.storage.layout import Layout

_SHOWN_MAX = 4


class MissingSegment(NamedTuple):
    """A segment whose files cannot be read now."""

    topic: Topic
    first_seq: int
    last_seq: int
    error: OSError


def refusal(missing: Sequence[MissingSegment], layout: Layout) -> UnrecoverableError:
    """Return the error for a start that cannot continue without these segments; there is at least one."""
    ranges = _joined(missing)
    shown = ranges[:_SHOWN_MAX]
    left = f", and {len(ranges) - len(shown)} more ranges" if len(ranges) > len(shown) else ""
    named = ", ".join(f"{first}..{last} of topic {topic.name!r}" for topic, first, last in shown)
    directories = f"--data-dir {quote(layout.data)}"
    if layout.cold is not None:
        directories += f" --cold-dir {quote(layout.cold)}"
    commands = " and ".join(
        f"`driftq repair --accept-loss {quote(topic.name)} {first}..{last} {directories}`"
        for topic, first, last in shown
    )
    files, are = ("file", "it is") if len(missing) == 1 else ("files", "they are")
    return UnrecoverableError(
        f"records {named}{left} cannot be read: {missing[0].error}; nothing was changed; bring the {files} back and"
        f" start again, or, if {are} gone for good, accept the loss with {commands}"
    )


def _joined(missing: Sequence[MissingSegment]) -> list[tuple[Topic, int, int]]:
    found: list[tuple[Topic, int, int]] = []
    for topic, first, last, _ in missing:
        if found and found[-1][0] is topic and found[-1][2] == first - 1:
            found[-1] = (topic, found[-1][1], last)
        else:
            found.append((topic, first, last))
    return found
