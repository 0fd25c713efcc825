"""Checks of `driftq doctor` for a running server, based on the server's answers.

Each check is a function of the answers, so tests can pass the answers of an unhealthy server. A finding that is not ok
includes what to do next. A check fails for what stops writes now or soon, and warns about what costs time or records
later.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from driftq.cli.output import readable, size
from driftq.model.vitals import CallerVitals, CheckpointVitals, ClockVitals, DiskVitals, PlaceVitals, Vitals

_HOUR_S = 3600.0
_DAY_MS = 86_400_000
_FULL_SOON_S = 72 * _HOUR_S
_BACKUP_OLD_MS = 7 * _DAY_MS
_AHEAD_MS = 1000
_SKEW_MS = 5000
_CHECKPOINT_LATE_MS = 600_000
_FREE_MIN = 1 << 30
_FREE_SHARE_MIN = 0.05
_HANDLES_SHARE_MAX = 0.8
_ADMIN = "admin"


class DoctorFinding(NamedTuple):
    """Result of one check: `ok`, `warn` or `fail`, and what to do if it is not ok."""

    check: str
    status: str
    found: str
    advice: str = ""


class Refusal(NamedTuple):
    """An answer with an error status."""

    status: int
    code: str
    message: str


def check_ready(answer: Mapping[str, Any] | Refusal) -> Iterator[DoctorFinding]:
    """Yield findings from `/v0/ready`: the writers, whether writes are accepted, and holes."""
    if isinstance(answer, Refusal):
        yield _not_ready(answer)
        return
    yield from _writers(answer.get("writers") or {})
    yield _writable(answer)
    holes = answer.get("holes")
    if holes:
        yield _holes(holes)
    else:
        yield DoctorFinding("holes", "ok", "none")


def _not_ready(refusal: Refusal) -> DoctorFinding:
    if refusal.status in (401, 403):
        return DoctorFinding("key", "fail", refusal.message, "set DRIFTQ_API_KEY, or pass --api-key-file")
    if refusal.code == "wal_stopped":
        return DoctorFinding(
            "log writer",
            "fail",
            refusal.message,
            "restart the server to recover; then look in `dmesg` and in its log for what stopped the writer",
        )
    if refusal.code == "not_ready":
        return DoctorFinding(
            "ready", "fail", refusal.message, "wait: it is reading its log; `/v0/ready` shows the progress"
        )
    if refusal.code == "shutting_down":
        return DoctorFinding("ready", "fail", refusal.message, "start the server again when it has exited")
    return DoctorFinding("ready", "fail", refusal.message, f"look in the log of the server for `{refusal.code}`")


def _writers(writers: Mapping[str, Mapping[str, Any]]) -> Iterator[DoctorFinding]:
    advice = {
        "hung": "check the disk (`dmesg`, `iostat`): a writer process gets no answer from it",
        "replaced": "restart the server when convenient: threads do the work of a writer process that ended",
    }
    for name in ("log", "segments"):
        state = writers.get(name)
        if state is None:
            yield DoctorFinding(f"{name} writer", "ok", "alive")
            continue
        kind, ms = str(state.get("state")), state.get("ms")
        found = kind if ms is None else f"{kind} for {ms / 1000:.0f} s"
        status = "warn" if kind == "replaced" else "fail"
        yield DoctorFinding(f"{name} writer", status, found, advice.get(kind, "look in the log of the server"))


def _writable(answer: Mapping[str, Any]) -> DoctorFinding:
    if answer.get("writable", True):
        return DoctorFinding("writes", "ok", "taken")
    message = str(answer.get("message") or answer.get("reason") or "refused")
    if answer.get("reason") == "disk_full":
        advice = "make room: delete topics or records, or lower caps; see `Disk full` in docs/operating.md"
    else:
        advice = "check the disk and the permissions of the data directory; writes resume when the cause is removed"
    return DoctorFinding("writes", "fail", f"refused: {message}", advice)


def _holes(holes: Mapping[str, int]) -> DoctorFinding:
    at_most = holes.get("at_most", 0)
    damage, crash, control = (holes.get(name, 0) for name in ("corruption", "crash", "control"))
    found = f"{damage} by damage, {crash} by crashes, {control} of control frames"
    found += f"; {at_most} of them may be empty" if at_most else ""
    if damage or control:
        advice = "stop the server and run `driftq verify` on its data directory: it names the files and the records"
    else:
        advice = "readers get a tombstone for each; write the records again, or use the class fsync to prevent this"
    return DoctorFinding("holes", "warn", found, advice)


def check_vitals(vitals: Vitals, now_ms: int) -> Iterator[DoctorFinding]:
    """Yield findings from the server's vitals; `now_ms` is the wall clock of this machine."""
    yield _caller(vitals.caller)
    yield _checkpoint(vitals.checkpoint)
    yield from _disk(vitals.disk)
    yield _backup(vitals.last_backup_ts, vitals.clock.now_ms)
    yield _clock(vitals.clock, now_ms)
    if vitals.place is not None:
        yield _handles(vitals.place)


def check_no_vitals(refusal: Refusal) -> DoctorFinding:
    """Return the finding for a server that refuses to show its vitals."""
    return DoctorFinding(
        "key",
        "warn",
        f"the server refuses to show its metrics: {refusal.message}",
        "use a key with scope read, or better admin: checkpoints, disk, backups and clock were not checked",
    )


def _caller(caller: CallerVitals) -> DoctorFinding:
    if caller.key is None:
        return DoctorFinding("key", "ok", "the server has no keys: every caller may do everything")
    names = f", names that start with {' or '.join(caller.prefixes)}" if caller.prefixes else ""
    found = f"entry {caller.key} of DRIFTQ_API_KEYS: {', '.join(caller.scopes)}{names}"
    advice = "" if _ADMIN in caller.scopes else "backups and checks of the data directory need a key with scope admin"
    return DoctorFinding("key", "ok", found, advice)


def _checkpoint(checkpoint: CheckpointVitals) -> DoctorFinding:
    age_s = checkpoint.age_ms / 1000
    found = f"{age_s:.0f} s old, {size(checkpoint.wal_bytes)} of log since then, {checkpoint.failures} failed"
    late = checkpoint.age_ms > max(_CHECKPOINT_LATE_MS, 5 * checkpoint.interval_ms) and checkpoint.wal_bytes > 0
    if not late:
        return DoctorFinding("checkpoint", "ok", found)
    advice = "look for `a checkpoint failed` in the log; usually the disk is full or failing"
    return DoctorFinding("checkpoint", "fail" if checkpoint.failures else "warn", found, advice)


def _disk(disk: DiskVitals | None) -> Iterator[DoctorFinding]:
    if disk is None:
        advice = "the file system of the data directory does not report its free space; monitor it in another way"
        yield DoctorFinding("server disk", "warn", "unknown", advice)
        return
    enough = disk.free_bytes >= max(_FREE_MIN, disk.total_bytes * _FREE_SHARE_MIN)
    found = f"{size(disk.free_bytes)} of {size(disk.total_bytes)} free"
    room = "free space or use a larger disk: with a full disk, writes are refused"
    yield DoctorFinding("server disk", "ok" if enough else "warn", found, "" if enough else room)
    fill = disk.fill_bytes_per_s
    if fill is None:
        yield DoctorFinding("disk forecast", "ok", "not known in the first five minutes after a start")
    elif fill <= 0:
        yield DoctorFinding("disk forecast", "ok", "the free space did not shrink in the last hour")
    else:
        left_s = disk.free_bytes / fill
        status = "fail" if left_s < _HOUR_S else "warn" if left_s < _FULL_SOON_S else "ok"
        found = f"full in {_duration(left_s)} at {size(int(fill))} per second"
        advice = "" if status == "ok" else "set caps or a TTL on the topics that grow, add --cold-dir, or add disk"
        yield DoctorFinding("disk forecast", status, found, advice)


def _duration(seconds: float) -> str:
    if seconds < _HOUR_S:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / _HOUR_S:.0f} hours" if seconds < _FULL_SOON_S else f"{seconds / 86_400:.0f} days"


def _backup(last_ts: int | None, now_ms: int) -> DoctorFinding:
    if last_ts is None:
        advice = "take one with `driftq backup`; the server knows those in its --backup-dir and those since its start"
        return DoctorFinding("backup", "warn", "no backup known", advice)
    age_ms = now_ms - last_ts
    found = f"the newest is from {readable('ts', last_ts)}"
    if age_ms <= _BACKUP_OLD_MS:
        return DoctorFinding("backup", "ok", found)
    return DoctorFinding("backup", "warn", f"{found}, {age_ms // _DAY_MS} days old", "take one with `driftq backup`")


def _clock(clock: ClockVitals, now_ms: int) -> DoctorFinding:
    skew_ms = clock.now_ms - now_ms
    if clock.ahead_ms > _AHEAD_MS:
        found = f"record timestamps are {clock.ahead_ms} ms ahead of the server's clock"
        return DoctorFinding(
            "server clock", "warn", found, "nothing to do: they advance slowly until the clock has caught up"
        )
    if abs(skew_ms) > _SKEW_MS:
        where = "ahead of" if skew_ms > 0 else "behind"
        found = f"it is {abs(skew_ms) / 1000:.0f} s {where} the clock of this machine"
        return DoctorFinding("server clock", "warn", found, "let a time service set the clocks of both machines")
    return DoctorFinding("server clock", "ok", f"{readable('ts', clock.now_ms)}, same as this machine")


def _handles(place: PlaceVitals) -> DoctorFinding:
    limit = place.file_handles_max
    found = f"{place.file_handles} open, the limit is {limit or 'none'}"
    if not limit or place.file_handles <= limit * _HANDLES_SHARE_MAX:
        return DoctorFinding("server handles", "ok", found)
    advice = f"raise the limit to {2 * limit} (ulimit -n, LimitNOFILE=) and restart, or lower --max-connections"
    return DoctorFinding("server handles", "warn", found, advice)
