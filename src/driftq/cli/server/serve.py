"""`driftq serve`: from settings to a serving process, and its shutdown (http-v0 §17).

    settings → address and guard → directories, lock → recovery → bind → port file → one line → until a signal
    → accept no connections → send due replies → make due copies → last checkpoint → exit 0

If the log stops for good, the server ends too, after a grace period for reads and with its own exit code. A supervisor
restarts it, and the start recovers the data. That shutdown takes no checkpoint.

A refused start prints the reason as one line on standard error and exits with 1. Normally nothing is bound by then.
Only if reading the log takes long does the server listen meanwhile: it answers its probes and refuses everything else
(`StartingApp`).
"""

import asyncio
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType

from driftq import __version__
from driftq.cli.exits import ExitCode
from driftq.cli.server.log_lines import chosen_format, refuse, start_log
from driftq.cli.server.reset_wal import move_aside
from driftq.cli.server.shutdown_report import failed_code, last_words
from driftq.config import Settings, Value, read_settings
from driftq.errors import DataDirLockedError, StartError
from driftq.http.app import App
from driftq.http.keys import ApiKeys
from driftq.http.metrics.request_log import RequestLog
from driftq.http.starting_app import StartingApp
from driftq.http.transport.connection_context import Terms
from driftq.http.transport.listener import ListenAddress, Listener, choose_address, write_port_file
from driftq.model.units import NS_PER_MS
from driftq.server import Server
from driftq.storage.layout import Layout
from driftq.system.clock import SystemClock
from driftq.system.disk import Disk, OsDisk, keep_private
from driftq.system.hang_guard import Patience, PatientDisk
from driftq.system.lock import ORPHANS_S, holders, wait_for_orphans
from driftq.system.log_facts import facts
from driftq.system.machine import collect_seldom, keep_for_good, keep_freed_memory, read_boot_id, take_variable
from driftq.system.runtime import AsyncioRuntime
from driftq.system.writer_process import OsWriterProcess, fork_writer_processes

_LOOP_PATIENCE_S = 0.5
"""How long the loop waits for a hanging cold directory: once, and not again until that call has returned."""
_QUICK_NS = 250_000_000
"""If the log is read within this time (250 ms), nothing is bound before."""
_SLICE_NS = 20_000_000
"""How long the log is read (20 ms) before the loop may answer a probe."""
_DRAIN_S = 5.0
_FILES = 4096
"""Number of file handles for files, in addition to those for connections."""
_STOP_S = 9.5
"""Time limit of a shutdown, so that it takes less than 10 s even if the disk hangs."""

_log = logging.getLogger(__name__)


def run_server(flags: dict[str, Value]) -> int:
    """Serve until asked to stop, and return the exit code."""
    form = str(flags.get("log_format") or chosen_format((), os.environ))
    try:
        settings = read_settings(os.environ, flags)
        keys = ApiKeys.parse(take_variable("DRIFTQ_API_KEYS"))
        start_log(settings.log_level, settings.log_format)
        keep_private(group_read=settings.group_read)
        _allow_handles(settings)
        keep_freed_memory()
        collect_seldom()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited by the writer processes
        _wait_for_orphans(settings)
        writer_processes = fork_writer_processes(settings.wal_shards + 1)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(settings, keys, writer_processes))
    except StartError as error:
        refuse(error.message, form)
        return ExitCode.FAILED


def _wait_for_orphans(settings: Settings) -> None:
    """Wait for the writer processes of a server that has ended. Raise DataDirLockedError if they do not end."""
    path = Layout(OsDisk(), settings.data_dir).lock_path
    if not wait_for_orphans(path):
        pids = ", ".join(map(str, holders(path))) or "unknown"
        raise DataDirLockedError(
            f"{settings.data_dir} is still in use by writer processes (pid {pids}) of a server that is gone; "
            f"they did not end within {ORPHANS_S:g} s"
        )


def _allow_handles(settings: Settings) -> None:
    """Raise the limit of file handles to what connections and files may need, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.connections_max + _FILES if settings.connections_max else hard
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(settings: Settings, keys: ApiKeys, writer_processes: list[OsWriterProcess]) -> ExitCode:
    """Start the server, serve until asked to stop, and return the exit code."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _ask_to_stop, stop, number.name)
    loop.add_signal_handler(signal.SIGHUP, _log.warning, "SIGHUP is ignored: settings are read at start only")
    runtime, clock, (disk, patience) = AsyncioRuntime(loop, writer_processes), SystemClock(), _disk_of(settings)
    chosen = choose_address(settings)
    if settings.reset_wal:
        for name in move_aside(settings, disk, clock):
            _log.warning("existing data was renamed to %s", name)
    _log_start(settings, chosen)
    server = Server(settings, disk, clock, runtime, boot_id=read_boot_id(), pid=os.getpid(), recover=False)
    starting = StartingApp(server, keys)
    requests = RequestLog(runtime, clock, slow_ms=settings.slow_request_ms, access_log=settings.access_log)
    listener = Listener(starting.handle, runtime, Terms.of(settings), requests=requests)
    recovery = server.recover()
    recovered = _go_on(recovery, clock, _QUICK_NS)
    try:
        if recovered:
            starting.app = App(server, keys)
        address = await _listen(listener, chosen, settings, disk)
        while not (recovered or stop.is_set()):
            recovered = _go_on(recovery, clock, _SLICE_NS)
            await asyncio.sleep(0)  # lets the loop answer probes
    except StartError:
        await listener.close(0)
        if recovered:
            await runtime.future(server.close())
        raise
    if not recovered:
        await listener.close(0)
        _log.info("stopped before the server was ready", extra=facts(replay_progress=server.replay_progress))
        return ExitCode.OK
    patience.hurry(_LOOP_PATIENCE_S)
    if starting.app is None:
        starting.app = App(server, keys)
    listener.answer_with(starting.app.handle, starting.app.shortcut)
    keep_for_good()
    _tell_what_was_found(server)
    _announce(server, address)
    server.engine.writers.ended.then(lambda done: _ask_to_stop(stop, done.result().value))
    await stop.wait()
    return await _stop(server, listener, runtime)


async def _stop(server: Server, listener: Listener, runtime: AsyncioRuntime) -> ExitCode:
    """Send the replies that are due, take the last checkpoint if possible, and return the exit code."""
    began_ns = server.clock.monotonic_ns()
    signal.signal(signal.SIGALRM, partial(_give_up, server))
    signal.setitimer(signal.ITIMER_REAL, _STOP_S)
    await listener.close(_DRAIN_S)
    checkpointed = await runtime.future(server.close())
    signal.setitimer(signal.ITIMER_REAL, 0)
    code = ExitCode.OK if checkpointed else failed_code(server)
    if not checkpointed:
        refuse(last_words(server, "the last checkpoint could not be taken"), server.settings.log_format, code)
    took_ms = (server.clock.monotonic_ns() - began_ns) // NS_PER_MS
    _log.info("stopped", extra=facts(ms=took_ms, checkpoint=checkpointed, exit_code=int(code)))
    return code


def _disk_of(settings: Settings) -> tuple[Disk, Patience]:
    """Return the disk of a server, and the timeouts for a cold directory that hangs."""
    cold, patience = settings.cold_dir, Patience()
    if cold is None or f"{os.path.abspath(settings.data_dir)}/".startswith(f"{os.path.abspath(cold)}/"):
        return OsDisk(), patience
    return PatientDisk(OsDisk(), cold, patience), patience


def _ask_to_stop(stop: asyncio.Event, why: str) -> None:
    if not stop.is_set():
        _log.info("stopping", extra=facts(reason=why))
    stop.set()


def _log_start(settings: Settings, chosen: ListenAddress) -> None:
    named = facts(
        version=__version__, pid=os.getpid(), address=str(chosen), data_dir=os.path.abspath(settings.data_dir)
    )
    _log.info("starting", extra=named)


def _go_on(recovery: Iterator[None], clock: SystemClock, for_ns: int) -> bool:
    """Read the log for at most `for_ns`. Return whether all of it is read."""
    until = clock.monotonic_ns() + for_ns
    return all(clock.monotonic_ns() < until for _ in recovery)


async def _listen(listener: Listener, chosen: ListenAddress, settings: Settings, disk: Disk) -> ListenAddress:
    address = await listener.open(chosen)
    if settings.port_file is not None:
        write_port_file(disk, settings.port_file, address)
    return address


def _tell_what_was_found(server: Server) -> None:
    """Log what the start has read, and whether records are lost or damaged."""
    found, holes = server.engine.recovered, server.holes()
    _log.info(
        "recovered",
        extra=facts(
            checkpoint=found.snapshot,
            frames=found.frames,
            files=found.files,
            ms=server.recovery_ms,
            topics=len(list(server.engine.catalog.visible())),
            late=sum(topic.late for topic in server.engine.catalog.visible()),
            holes=0 if holes is None else holes.corruption + holes.crash + holes.control,
        ),
    )
    for snapshot in found.refused_snapshots:
        _log.warning("checkpoint %s is not valid and was skipped", snapshot)
    if found.damaged or found.control_lost or found.jumps_refused:
        _log.warning(
            "the log is damaged: %d regions, %d of them control frames, %d frames after a loss",
            found.damaged,
            found.control_lost,
            found.jumps_refused,
        )
    if holes is not None and (known := holes.corruption + holes.crash - holes.at_most):
        _log.warning("records are missing: %d holes from damage or crashes", known)
    if holes is not None and holes.at_most:
        _log.warning("records may be missing: %d holes that may be empty", holes.at_most)


def _announce(server: Server, address: ListenAddress) -> None:
    """Log that the server is ready, and print one line on standard output."""
    writable = None if server.engine.refusal is None else False
    _log.info("ready", extra=facts(address=str(address), ms=server.health().uptime_ms, writable=writable))
    sys.stdout.write(f"driftq {__version__} listens on http://{address}, data in {server.settings.data_dir}\n")
    sys.stdout.flush()


def _give_up(server: Server, _: int, __: FrameType | None) -> None:
    """End the process when the shutdown exceeds its time limit."""
    code = failed_code(server)
    message = last_words(server, "the shutdown took too long; the disk may be hanging")
    refuse(message, server.settings.log_format, code)
    sys.stderr.flush()
    server.engine.writers.abandon()
    os._exit(code)
