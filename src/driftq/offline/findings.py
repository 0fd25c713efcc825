"""What is wrong with a data directory: one finding per place, as values that a table or JSON can show.

    damage   bytes that differ from what was written
    missing  a file that other files refer to and that does not exist
    torn     an end that a crash may have cut off; a start removes it, and it contains nothing that was synced
    stray    a file that no other file refers to: left by a crash, or not ours

Invariant: after a graceful stop of the server, the only findings are strays that are not ours. What a crash alone can
leave is marked `crash`, so that a caller who knows of a crash can ignore it.
"""

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct


class Verdict(StrEnum):
    """Kinds of findings; the module docstring explains them."""

    DAMAGE = "damage"
    MISSING = "missing"
    TORN = "torn"
    STRAY = "stray"


class Finding(Struct, frozen=True, omit_defaults=True):
    """One problem at one place of a file."""

    file: str
    verdict: Verdict
    what: str
    offset: int | None = None
    topic_id: int | None = None
    first_seq: int | None = None
    last_seq: int | None = None
    crash: bool = False
    """Whether a crash may have left this, without any damaged byte."""

    @property
    def segment(self) -> int | None:
        """Return the first seq of the segment that the file belongs to, or None."""
        _, found, name = self.file.rpartition("/seg-")
        return int(name[:16]) if found else None


class VerificationReport(Struct):
    """Totals and findings of one complete verification."""

    data_dir: str
    cold_dir: str | None = None
    files: int = 0
    bytes: int = 0
    frames: int = 0
    blocks: int = 0
    records: int = 0
    topics: int = 0
    checkpoint: int = 0
    findings: list[Finding] = []

    def wrong(self, *, after_crash: bool = False) -> list[Finding]:
        """Return the findings that are problems. A stray that a crash does not explain is not ours, and only listed."""
        return [
            found
            for found in self.findings
            if not (after_crash and found.crash) and not (found.verdict is Verdict.STRAY and not found.crash)
        ]


Tell = Callable[[int], None]
"""Called with the number of bytes read since the last call."""
