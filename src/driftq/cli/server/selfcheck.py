"""`driftq selfcheck`: check that this installation works on this machine, with a real server and disk; leaves no files.

a server process: starts, answers its probes, stops
an engine in this process: writes, reads, restarts, reads
"""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory

import typer
from msgspec import DecodeError, Struct, json

from driftq import __version__
from driftq.cli.output import Json
from driftq.cli.server.child_server import ChildServer
from driftq.codec.record_json import Fields, render_records
from driftq.codec.write_body import make_rows
from driftq.config import Settings
from driftq.engine.block_fetch import Fetch
from driftq.engine.engine import Engine
from driftq.engine.read.topic_page import PageQuery
from driftq.errors import DriftQError
from driftq.model.topic_config import Durability, TopicConfig
from driftq.system.clock import SystemClock
from driftq.system.disk import OsDisk
from driftq.system.runtime import AsyncioRuntime

_PATIENCE_S = 10.0
_TOPIC = "selfcheck"
_WRITES, _RECORDS = 20, 50


class Check(Struct, frozen=True):
    """One successful check and how long it took."""

    what: str
    ms: float


class Findings(Struct, frozen=True, omit_defaults=True):
    """Result of a self-check: the successful checks, and the error that ended it."""

    ok: bool
    version: str
    checks: list[Check]
    error: str | None = None


class CheckFailedError(Exception):
    """Raised with the reason when a check fails."""


class _Checks:
    """Records the successful checks and their times."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._since_ns = self._clock.monotonic_ns()
        self.all: list[Check] = []

    def passed(self, what: str) -> None:
        """Record a successful check; its time is the time since the previous one."""
        now_ns = self._clock.monotonic_ns()
        self.all.append(Check(what, round((now_ns - self._since_ns) / 1e6, 1)))
        self._since_ns = now_ns


def selfcheck(*, as_json: Json = False) -> None:
    """Start a server in a temporary directory, check that it works, and list what was checked."""
    raise typer.Exit(run_selfcheck(as_json=as_json))


def run_selfcheck(*, as_json: bool) -> int:
    """Run all checks and print them. Return the exit code."""
    findings = find()
    if as_json:
        sys.stdout.write(json.format(json.encode(findings), indent=2).decode() + "\n")
    else:
        sys.stdout.writelines(f"ok  {check.what} ({check.ms} ms)\n" for check in findings.checks)
    if findings.error is not None:
        sys.stderr.write(f"driftq: {findings.error}\n")
    return 0 if findings.ok else 1


def find() -> Findings:
    """Run the checks up to the first failure."""
    checks = _Checks()
    try:
        with TemporaryDirectory(prefix="driftq-selfcheck-") as directory:
            _check_server(directory, checks)
            _check_engine(directory, checks)
    except (CheckFailedError, DriftQError, OSError, HTTPException, DecodeError) as error:
        return Findings(False, __version__, checks.all, f"the self-check failed: {str(error) or type(error).__name__}")
    return Findings(True, __version__, checks.all)


def _require(truth: object, message: str) -> None:
    if not truth:
        raise CheckFailedError(message)


# A server in a child process


def _check_server(directory: str, checks: _Checks) -> None:
    with ChildServer(Path(directory, "server"), Path(directory, "server.log")) as server:
        checks.passed("a server starts and writes its port file")
        _check_probes(server.address)
        checks.passed("health and readiness answer on both paths")
        server.stop()
        checks.passed("SIGTERM stops the server with exit code 0")


def _check_probes(address: str) -> None:
    connection = HTTPConnection(address, timeout=_PATIENCE_S)
    try:
        for path, status in (("/healthz", "ok"), ("/v0/health", "ok"), ("/readyz", "ready"), ("/v0/ready", "ready")):
            connection.request("GET", path)
            reply = connection.getresponse()
            body = json.decode(reply.read(), type=dict[str, object])
            right = reply.status == 200 and body.get("status") == status
            _require(right, f"GET {path} answered {reply.status} {body}")
    finally:
        connection.close()


# An engine in this process


def _check_engine(directory: str, checks: _Checks) -> None:
    settings = Settings(data_dir=f"{directory}/engine")
    Path(settings.data_dir).mkdir()
    written = _with_engine(settings, _write)
    checks.passed(f"{_WRITES * _RECORDS} records are written, with a sync every {_RECORDS}, and read back")
    found = _with_engine(settings, _read)
    _require(found == written, "after a restart, the records differ from those written")
    checks.passed("the records are the same after a restart")


def _with_engine(
    settings: Settings, story: Callable[[Engine, AsyncioRuntime], Coroutine[object, object, bytes]]
) -> bytes:
    """Open an engine, run `story` on it, close it, and return the records that `story` returned."""

    async def run() -> bytes:
        runtime = AsyncioRuntime(asyncio.get_running_loop())
        engine = Engine(OsDisk(), SystemClock(), runtime, settings, pid=os.getpid())
        try:
            return await story(engine, runtime)
        finally:
            await runtime.future(engine.close())

    return asyncio.run(run())


async def _write(engine: Engine, runtime: AsyncioRuntime) -> bytes:
    config = TopicConfig(durability=Durability.FSYNC)
    last = 0
    for write in range(_WRITES):
        rows = make_rows([b'{"write":%d,"row":%d}' % (write, row) for row in range(_RECORDS)], ["tag"] * _RECORDS)
        appended = await runtime.future(engine.append(_TOPIC, rows, config=config))
        _require(appended.first_seq == last + 1, f"seq {appended.first_seq} was assigned after seq {last}")
        last = appended.last_seq
    records = await _read(engine, runtime)
    data = [record["data"] for record in json.decode(b"[%b]" % records, type=list[dict[str, object]])]
    wanted = [{"write": write, "row": row} for write in range(_WRITES) for row in range(_RECORDS)]
    _require(data == wanted, "the records read differ from those written")
    return records


async def _read(engine: Engine, runtime: AsyncioRuntime) -> bytes:
    """Return all records of the topic as JSON, as a reader gets them."""
    parts = []
    cursor, caught_up = 0, False
    while not caught_up:
        page = engine.diff(_TOPIC, PageQuery(from_seq=cursor))
        if isinstance(page, Fetch):
            await runtime.future(page)
            continue
        _require(page.tombstone is None, f"the reader got a tombstone: {page.tombstone}")
        parts.append(render_records(page, Fields(tags=True)))
        cursor, caught_up = page.next_from_seq, page.caught_up
    return b",".join(parts)
