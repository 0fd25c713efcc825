"""What is wrong with a data directory: one finding per place, as values that a table or JSON can show.

    damage   bytes that are not what was written
    missing  a file that others say is there
    torn     an end that a crash may have cut off; a start cuts it away, and nothing that was synced is in it
    stray    a file that nothing names: left by a crash, or not ours

Invariant: a directory of a server that was stopped gracefully has no finding but strays that are not ours. What a crash
alone may leave is marked `crash`, so that whoever knows of one can pass it over.
"""

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct


class Verdict(StrEnum):
    """What kind of wrong."""

    DAMAGE = "damage"
    MISSING = "missing"
    TORN = "torn"
    STRAY = "stray"


class Finding(Struct, frozen=True, omit_defaults=True):
    """One place."""

    file: str
    verdict: Verdict
    what: str
    offset: int | None = None
    topic_id: int | None = None
    first_seq: int | None = None
    last_seq: int | None = None
    crash: bool = False
    """May a crash have left it, with no byte gone bad?"""

    @property
    def segment(self) -> int | None:
        """The first seq of the segment whose file it is."""
        _, found, name = self.file.rpartition("/seg-")
        return int(name[:16]) if found else None


class VerificationReport(Struct):
    """What a reading of everything has found."""

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
        """The findings that count. A stray that no crash explains belongs to somebody else, and is only shown."""
        return [
            found
            for found in self.findings
            if not (after_crash and found.crash) and not (found.verdict is Verdict.STRAY and not found.crash)
        ]


Tell = Callable[[int], None]
"""Hears how many more bytes have been read."""
