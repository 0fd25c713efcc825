"""Records of the pipeline runs on this machine, one file each, for the commands `ls`, `status` and `stop`.

    <state>/<id>.json   the record, written by the run itself
    <state>/<id>.stop   exists if the run is to stop

A record is replaced as a whole, so a reader sees either the old one or the new one. A run whose process has disappeared
without writing its end is shown as `lost`. The record has the process id and the start time of the process, so another
process with the same id is not mistaken for it.

Invariant: no record contains an API key, or an option that holds one.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct, structs

from driftq.pipeline.errors import AbsentError, PipelineError
from driftq.pipeline.runs.job import Progress
from driftq.system.clock import Clock, SystemClock
from driftq.system.entropy import Entropy, SystemEntropy

State = Literal["starting", "running", "done", "stopped", "failed", "lost"]
OPEN: frozenset[State] = frozenset({"starting", "running"})

_KEPT = 100
"""Number of records of ended runs to keep. The oldest are removed first."""


class RunRecord(Struct, frozen=True, kw_only=True):
    """One run of a pipeline, as stored in its file."""

    id: str
    pipeline: str
    options: dict[str, Any]
    server: str
    pid: int
    born: int
    """Start time of the process, in clock ticks since the machine started."""
    started_ms: int
    state: State = "starting"
    progress: Progress = Progress()
    checkpoints: list[str] = []
    updated_ms: int = 0
    ended_ms: int | None = None
    error: str | None = None


class RunRecords:
    """The records of all runs on this machine."""

    def __init__(
        self, directory: Path | None = None, *, clock: Clock | None = None, entropy: Entropy | None = None
    ) -> None:
        self.directory = directory or state_directory()
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()

    def begin(self, pipeline: str, options: Mapping[str, Any], server: str) -> RunRecord:
        """Create the record of a run of this process."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._forget_old()
        now, pid = self._clock.wall_ms(), os.getpid()
        record = RunRecord(
            id=self._entropy.token(4).hex(),
            pipeline=pipeline,
            options=dict(options),
            server=server,
            pid=pid,
            born=born(pid) or 0,
            started_ms=now,
            updated_ms=now,
        )
        return self.write(record)

    def write(self, record: RunRecord, **changes: Any) -> RunRecord:
        """Write `record` with `changes` and a new `updated_ms` to the file of the run here, and return it."""
        changed = structs.replace(record, updated_ms=self._clock.wall_ms(), **changes)
        path = self._path(record.id, "json")
        fresh = path.with_suffix(f".{self._entropy.token(4).hex()}")
        fresh.write_bytes(msgspec.json.encode(changed))
        fresh.replace(path)
        return changed

    def end(self, record: RunRecord, state: State, error: str | None = None) -> RunRecord:
        """Write how a run ended, and remove its stop request."""
        self._path(record.id, "stop").unlink(missing_ok=True)
        return self.write(record, state=state, error=error, ended_ms=self._clock.wall_ms())

    def all(self) -> list[RunRecord]:
        """Return the records of all runs, newest first."""
        found = [record for path in self.directory.glob("*.json") if (record := _read(path)) is not None]
        return sorted(found, key=lambda record: (-record.started_ms, record.id))

    def find(self, wanted: str) -> RunRecord:
        """Return a run by its id, by the name of its pipeline, or by the first characters of its id.

        For a pipeline, this is its open run, or its newest one if none is open. Raises AbsentError, or PipelineError if
        several runs match.
        """
        everything = self.all()
        named = [one for one in everything if one.pipeline == wanted or Path(one.pipeline).name == wanted]
        known = [one for one in everything if one.id == wanted]
        known = known or [one for one in named if one.state in OPEN] or named[:1]
        known = known or [one for one in everything if one.id.startswith(wanted)]
        if not known:
            raise AbsentError(f"no run matches {wanted!r}; `driftq pipeline ls --all` lists all runs")
        if len(known) > 1:
            raise PipelineError(
                f"{wanted!r} matches several runs: {', '.join(one.id for one in known)}; give one of these ids"
            )
        return known[0]

    def ask_to_stop(self, record: RunRecord) -> None:
        """Request a stop. The run stops at its next check."""
        self._path(record.id, "stop").touch()

    def asked_to_stop(self, record: RunRecord) -> bool:
        """Whether a stop of this run was requested."""
        return self._path(record.id, "stop").exists()

    def holder(self, checkpoint: str) -> RunRecord | None:
        """Return the open run that has reserved a checkpoint, or None."""
        return next((one for one in self.all() if one.state in OPEN and checkpoint in one.checkpoints), None)

    def _path(self, run_id: str, ending: str) -> Path:
        return self.directory / f"{run_id}.{ending}"

    def _forget_old(self) -> None:
        over = [record for record in self.all() if record.state not in OPEN]
        for record in over[_KEPT:]:
            for ending in ("json", "stop"):
                self._path(record.id, ending).unlink(missing_ok=True)


def _read(path: Path) -> RunRecord | None:
    try:
        record = msgspec.json.decode(path.read_bytes(), type=RunRecord)
    except (OSError, msgspec.DecodeError):
        return None  # it was removed meanwhile, or another version wrote it
    if record.state in OPEN and born(record.pid) != record.born:
        return structs.replace(
            record, state="lost", error="its process ended unexpectedly; start it again to continue where it was"
        )
    return record


def born(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot. None if there is no such process.

    Without /proc the start time is unknown: returns 0 for a process that exists.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None if Path("/proc/self/stat").exists() else _alive(pid)
    return int(stat.rpartition(")")[2].split()[19])


def _alive(pid: int) -> int | None:
    """Return 0 if the process exists, else None. Used without /proc, where the start time is unknown."""
    try:
        os.kill(pid, 0)
    except OSError:
        return None
    return 0


def state_directory() -> Path:
    """Return the directory for the records of this user: DRIFTQ_PIPELINE_DIR, else one under XDG_STATE_HOME."""
    given = os.environ.get("DRIFTQ_PIPELINE_DIR")
    if given:
        return Path(given)
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(home, "driftq/pipelines")
