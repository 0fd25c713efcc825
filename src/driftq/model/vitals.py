"""What an operator asks a running server first: `vitals` in the JSON of `/v0/metrics` (http-v0 §17)."""

from msgspec import Struct


class CheckpointVitals(Struct, frozen=True):
    """How checkpoints go."""

    age_ms: int
    """Since the last one was installed; before the first one, since the start."""
    failures: int
    """Since the start."""
    wal_bytes: int
    """What was written since; a start has to read it again."""
    interval_ms: int
    """`--checkpoint-interval-ms`."""


class DiskVitals(Struct, frozen=True):
    """The file system of the data directory."""

    free_bytes: int
    total_bytes: int
    fill_bytes_per_s: float | None
    """How quickly the free space shrank in the last hour; None in the first five minutes."""


class ClockVitals(Struct, frozen=True):
    """The server's time."""

    now_ms: int
    """Its wall clock."""
    ahead_ms: int
    """How far the time that it stamps records with is ahead of the wall clock."""


class CallerVitals(Struct, frozen=True):
    """What the key of this request may do."""

    key: int | None
    """The number of its entry in DRIFTQ_API_KEYS; None where the server has no keys."""
    scopes: list[str]
    prefixes: list[str]


class PlaceVitals(Struct, frozen=True):
    """Where the server is; only for keys with the scope `admin` and without prefixes."""

    pid: int
    data_dir: str
    cold_dir: str | None
    backup_dir: str | None
    file_handles: int
    """Open now: connections, files and pipes."""
    file_handles_max: int
    """The limit of the process; 0: none."""


class Vitals(Struct, frozen=True):
    """All of it."""

    checkpoint: CheckpointVitals
    disk: DiskVitals | None
    """None where the file system does not say."""
    last_backup_ts: int | None
    """When the state of the newest backup was taken; None where no backup is known."""
    clock: ClockVitals
    caller: CallerVitals
    place: PlaceVitals | None
