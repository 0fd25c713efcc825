"""What recovery found in the data directory."""

from msgspec import Struct


class ReplayReport(Struct):
    """Counts of one start: files, frames, damage."""

    snapshot: int = 0
    refused_snapshots: list[str] = []
    files: int = 0
    frames: int = 0
    torn: int = 0
    damaged: int = 0
    control_lost: int = 0
    """Damaged control frames: counted and reported; their content is never guessed."""
    jumps_refused: int = 0
