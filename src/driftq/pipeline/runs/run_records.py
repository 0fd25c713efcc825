"""Runs of pipelines on this machine, one file each: what `ls`, `status` and `stop` know.

    <state>/<id>.json   the record, written by the run itself        <state>/<id>.stop   somebody asks it to stop

A record is replaced as a whole, so a reader sees an old one or a new one. A run whose process is gone without a word
is told as `lost`: its record says who it was, by process id and by when that process began, so another process that
got the same id is not taken for it.

Invariant: no record has a key, or an option that is one.
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
"""Records of runs that ended; the oldest go first."""


class RunRecord(Struct, frozen=True, kw_only=True):
    """One run."""

    id: str
    pipeline: str
    options: dict[str, Any]
    server: str
    pid: int
    born: int
    """When the process began, as the system counts."""
    started_ms: int
    state: State = "starting"
    progress: Progress = Progress()
    checkpoints: list[str] = []
    updated_ms: int = 0
    ended_ms: int | None = None
    error: str | None = None


class RunRecords:
    """All runs that this machine knows."""

    def __init__(
        self, directory: Path | None = None, *, clock: Clock | None = None, entropy: Entropy | None = None
    ) -> None:
        self.directory = directory or state_directory()
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()

    def begin(self, pipeline: str, options: Mapping[str, Any], server: str) -> RunRecord:
        """A run of this process."""
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
        """Replace the record of a run."""
        changed = structs.replace(record, updated_ms=self._clock.wall_ms(), **changes)
        path = self._path(record.id, "json")
        fresh = path.with_suffix(f".{self._entropy.token(4).hex()}")
        fresh.write_bytes(msgspec.json.encode(changed))
        fresh.replace(path)
        return changed

    def end(self, record: RunRecord, state: State, error: str | None = None) -> RunRecord:
        """A run is over."""
        self._path(record.id, "stop").unlink(missing_ok=True)
        return self.write(record, state=state, error=error, ended_ms=self._clock.wall_ms())

    def all(self) -> list[RunRecord]:
        """Every run, the newest first."""
        found = [record for path in self.directory.glob("*.json") if (record := _read(path)) is not None]
        return sorted(found, key=lambda record: (-record.started_ms, record.id))

    def find(self, wanted: str) -> RunRecord:
        """A run by its id, by its pipeline, or by the beginning of its id.

        Of the runs of a pipeline the one that is open is meant, and where none is, the newest. Raises AbsentError, or
        PipelineError where more than one may be meant.
        """
        everything = self.all()
        named = [one for one in everything if one.pipeline == wanted or Path(one.pipeline).name == wanted]
        known = [one for one in everything if one.id == wanted]
        known = known or [one for one in named if one.state in OPEN] or named[:1]
        known = known or [one for one in everything if one.id.startswith(wanted)]
        if not known:
            raise AbsentError(f"no run is called {wanted!r}; `driftq pipeline ls --all` lists them")
        if len(known) > 1:
            raise PipelineError(f"{wanted!r} may be any of {', '.join(one.id for one in known)}; name one of these")
        return known[0]

    def ask_to_stop(self, record: RunRecord) -> None:
        """It stops when it next looks."""
        self._path(record.id, "stop").touch()

    def asked_to_stop(self, record: RunRecord) -> bool:
        """Has somebody asked?"""
        return self._path(record.id, "stop").exists()

    def holder(self, checkpoint: str) -> RunRecord | None:
        """The run that has a checkpoint."""
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
        return None  # it went meanwhile, or another version wrote it
    if record.state in OPEN and born(record.pid) != record.born:
        return structs.replace(
            record, state="lost", error="its process is gone; start it again, it goes on where it was"
        )
    return record


def born(pid: int) -> int | None:
    """When a process began, in ticks since the machine did; None if there is none, or nobody to ask."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None if Path("/proc/self/stat").exists() else _alive(pid)
    return int(stat.rpartition(")")[2].split()[19])


def _alive(pid: int) -> int | None:
    """Where there is no /proc, that it is there is all one can know."""
    try:
        os.kill(pid, 0)
    except OSError:
        return None
    return 0


def state_directory() -> Path:
    """Where runs of this user are noted: DRIFTQ_PIPELINE_DIR, else under XDG_STATE_HOME."""
    given = os.environ.get("DRIFTQ_PIPELINE_DIR")
    if given:
        return Path(given)
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(home, "driftq/pipelines")
