"""`driftq serve`: from settings to a process that serves, and out again (http-v0 §17).

    settings → address and guard → directories, lock → recovery → bind → port file → one line → until a signal
    → accept nobody → replies that are due → copies that are due → last checkpoint → 0

A refused start says why in one line on standard error and exits 1. It has bound nothing, unless the log takes long to
read: then the server is bound meanwhile, so that its probes are answered, and refuses everything else (`Threshold`).
"""

import asyncio
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

from driftq import __version__
from driftq.cli.aside import move_aside
from driftq.cli.logs import start_log
from driftq.config import Settings, Value, read_settings
from driftq.errors import StartError
from driftq.http.app import App
from driftq.http.keys import Keys
from driftq.http.listener import Address, Listener, choose_address, write_port_file
from driftq.http.serving import Terms
from driftq.http.threshold import Threshold
from driftq.seam.clock import SystemClock
from driftq.seam.disk import OsDisk
from driftq.seam.lock import wait_for_orphans
from driftq.seam.memory import collect_seldom, keep_for_good, keep_freed_memory
from driftq.seam.runtime import AsyncioRuntime
from driftq.seam.scribe import ScribeProcess, fork_scribes
from driftq.server import Server
from driftq.storage.layout import Layout

_QUICK_NS = 250_000_000
"""A log that is read in this time is read before anything is bound."""
_SLICE_NS = 20_000_000
"""How long it is read before the loop may answer a probe."""
_DRAIN_S = 5.0
_FILES = 4096
"""Handles for files, beside those for connections."""
_STOP_S = 9.5
"""A stop takes less than ten seconds, whatever the disk does."""

_log = logging.getLogger(__name__)


def run_server(flags: dict[str, Value]) -> int:
    """Serve until told to stop; the exit code."""
    try:
        settings = read_settings(os.environ, flags)
        keys = Keys.parse(os.environ.pop("DRIFTQ_API_KEYS", ""))
        start_log(settings.log_level, settings.log_format)
        _allow_handles(settings)
        keep_freed_memory()
        collect_seldom()
        wait_for_orphans(Layout(OsDisk(), settings.data_dir).lock_path)
        scribes = fork_scribes(settings.wal_shards + 1)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            checkpointed = runner.run(_serve(settings, keys, scribes))
    except StartError as error:
        _say(error.message)
        return 1
    if not checkpointed:
        _say("the last checkpoint could not be taken; nothing is lost, and the next start replays the log")
        return 1
    return 0


def _allow_handles(settings: Settings) -> None:
    """As many file handles as connections and files may need, if the system lets us have them."""
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


async def _serve(settings: Settings, keys: Keys, scribes: list[ScribeProcess]) -> bool:
    """The life of a server. Returns whether its last checkpoint was taken."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    runtime, disk, clock = AsyncioRuntime(loop, scribes), OsDisk(), SystemClock()
    chosen = choose_address(settings)
    if settings.reset_wal:
        for name in move_aside(settings, disk, clock):
            _log.warning("what there was is kept as %s", name)
    server = Server(settings, disk, clock, runtime, pid=os.getpid(), recover=False)
    threshold = Threshold(server, keys)
    listener = Listener(threshold.handle, runtime, Terms.of(settings))
    recovery = server.recover()
    recovered = _go_on(recovery, clock, _QUICK_NS)
    try:
        if recovered:
            threshold.behind = App(server, keys)
        address = await _listen(listener, chosen, settings, disk)
        while not (recovered or stop.is_set()):
            recovered = _go_on(recovery, clock, _SLICE_NS)
            await asyncio.sleep(0)  # so that probes are answered
    except StartError:
        await listener.close(0)
        if recovered:
            await runtime.future(server.close())
        raise
    if not recovered:
        await listener.close(0)
        return True
    if threshold.behind is None:
        threshold.behind = App(server, keys)
    listener.answer_with(threshold.behind.handle, threshold.behind.shortcut)
    keep_for_good()
    _tell_what_was_found(server)
    _announce(address, settings)
    await stop.wait()
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, _STOP_S)
    await listener.close(_DRAIN_S)
    checkpointed = await runtime.future(server.close())
    signal.setitimer(signal.ITIMER_REAL, 0)
    return checkpointed


def _go_on(recovery: Iterator[None], clock: SystemClock, for_ns: int) -> bool:
    """Read the log for a while; is it through?"""
    until = clock.monotonic_ns() + for_ns
    return all(clock.monotonic_ns() < until for _ in recovery)


async def _listen(listener: Listener, chosen: Address, settings: Settings, disk: OsDisk) -> Address:
    address = await listener.open(chosen)
    if settings.port_file is not None:
        write_port_file(disk, settings.port_file, address)
    return address


def _tell_what_was_found(server: Server) -> None:
    """A start that found anything lost or damaged says so; one that found nothing is quiet."""
    found = server.engine.recovered
    for snapshot in found.refused_snapshots:
        _log.warning("checkpoint %s was passed over", snapshot)
    if found.damaged or found.control_lost or found.jumps_refused:
        _log.warning(
            "the log is damaged: %d regions, %d of them control frames, %d frames behind a loss",
            found.damaged,
            found.control_lost,
            found.jumps_refused,
        )
    holes = server.readiness().holes
    if holes is not None:
        _log.warning("records are missing: %d holes of damage, %d of crashes", holes.corruption, holes.crash)
    _log.debug("recovered from checkpoint %d and %d frames of %d files", found.snapshot, found.frames, found.files)


def _announce(address: Address, settings: Settings) -> None:
    sys.stdout.write(f"driftq {__version__} listens on http://{address}, data in {settings.data_dir}\n")
    sys.stdout.flush()


def _say(message: str) -> None:
    sys.stderr.write(f"driftq: {message}\n")


def _give_up(_: int, __: FrameType | None) -> None:
    _say("the disk did not let the server stop in time; nothing is lost, and the next start replays the log")
    sys.stderr.flush()
    os._exit(1)
