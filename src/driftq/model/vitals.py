"""The first figures that an operator needs: `vitals` in the JSON of `/v0/metrics` (http-v0 §17)."""

from msgspec import Struct


class CheckpointVitals(Struct, frozen=True):
    """Age, failures and interval of checkpoints."""

    age_ms: int
    """Time since the last checkpoint was installed; before the first one, since the start."""
    failures: int
    """Failed checkpoints since the start."""
    wal_bytes: int
    """WAL bytes written since the last checkpoint. A start has to read them again."""
    interval_ms: int
    """The value of the setting `--checkpoint-interval-ms`."""


class DiskVitals(Struct, frozen=True):
    """The file system of the data directory."""

    free_bytes: int
    total_bytes: int
    fill_bytes_per_s: float | None
    """How fast the free space shrank in the last hour; None in the first five minutes."""


class ClockVitals(Struct, frozen=True):
    """The clock of the server."""

    now_ms: int
    """The wall clock of the server."""
    ahead_ms: int
    """How far the timestamps of new records are ahead of the wall clock."""


class CallerVitals(Struct, frozen=True):
    """What the API key of this request may do."""

    key: int | None
    """The number of its entry in DRIFTQ_API_KEYS; None if the server has no keys."""
    scopes: list[str]
    prefixes: list[str]


class PlaceVitals(Struct, frozen=True):
    """Process and directories of the server; only for keys with the scope `admin` and without prefixes."""

    pid: int
    data_dir: str
    cold_dir: str | None
    backup_dir: str | None
    file_handles: int
    """Open handles: connections, files and pipes."""
    file_handles_max: int
    """The limit of the process; 0 means no limit."""


class Vitals(Struct, frozen=True):
    """The first figures that an operator needs."""

    checkpoint: CheckpointVitals
    disk: DiskVitals | None
    """None if the file system does not report it."""
    last_backup_ts: int | None
    """When the state of the newest backup was taken; None if no backup is known."""
    clock: ClockVitals
    caller: CallerVitals
    place: PlaceVitals | None
