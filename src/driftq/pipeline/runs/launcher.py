"""Starts a pipeline and follows it: the session, the record of the run, signals, and the result.

    starting → running → done | stopped (on request) | failed (the error is one line)

Invariant: however a run ends in this process, its record shows how it ended.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs, to_builtins

from driftq.client import Client, TransportError, UnavailableError
from driftq.client.client import DEFAULT_URL
from driftq.pipeline.errors import PipelineError, UnreachableError
from driftq.pipeline.runs.job import JobResult, Progress, find_job
from driftq.pipeline.runs.job_options import make_options
from driftq.pipeline.runs.query_progress import Tally, sum_up
from driftq.pipeline.runs.run_records import RunRecord, RunRecords
from driftq.pipeline.spark.failures import in_one_line
from driftq.pipeline.spark_session import session
from driftq.system.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_S = 0.25
"""Interval in seconds at which a run checks its queries and looks for a stop request."""
_NOTE_NS = 1_000_000_000
"""Minimum interval at which progress is written to the record: 1 s."""
_IDLE_NS = 3_000_000_000
_BEGIN_NS = 10_000_000_000
"""How long a stop waits for a query that is starting (10 s). Spark would drop a source that connects late."""
_BEGINNING = ("Initializing sources", "Getting offsets")
_TRIES = 4
_TOO_BUSY = "failed to connect back"
_SECRET = ("key", "token", "secret", "password")


class RunSettings(Struct, frozen=True, kw_only=True):
    """Where a pipeline runs. Contains no secrets; API keys come from DRIFTQ_API_KEY."""

    server: str | None = None
    master: str | None = None
    remote: str | None = None
    conf: dict[str, str] = {}
    short: bool = False
    """For a run of a few seconds: the JVM compiles code fast instead of optimizing it."""
    state_dir: str | None = None


Listener = Callable[[RunRecord], None]


def run_job(
    name: str, /, *, settings: RunSettings | None = None, listener: Listener | None = None, **options: Any
) -> JobResult:
    """Run a job to its end and return its result. Raises PipelineError, or the error of the server."""
    job = find_job(name)
    given = make_options(job.options, options)
    return launch(name, to_builtins(given), lambda run: job.run(run, given), settings=settings, listener=listener)


def launch(
    name: str,
    options: Mapping[str, Any],
    body: Callable[["LiveRun"], JobResult],
    *,
    settings: RunSettings | None = None,
    listener: Listener | None = None,
    every_s: float | None = None,
) -> JobResult:
    """Run `body` as a pipeline, once or every `every_s` seconds. Raises its error; an error of Spark becomes one line.

    A repeated run does not fail if the server, after its first answer, is down for a while.
    """
    run = LiveRun(name, options, settings or RunSettings(), listener)
    with run.signals():
        try:
            outcome = _patiently(body, run)
            while every_s is not None and not run.pause(every_s):
                outcome = _again(body, run) or outcome
        except BaseException as error:
            mended = in_one_line(error)
            run.end("failed", str(mended))
            if mended is error:
                raise
            raise mended from error
        else:
            run.end("stopped" if run.stopping() else "done")
            return outcome
        finally:
            run.close()


def _patiently(body: Callable[["LiveRun"], JobResult], run: "LiveRun") -> JobResult:
    """Run `body`; repeat it if the machine was too busy: Spark gives the process of a source 10 s to connect."""
    for _ in range(_TRIES - 1):
        try:
            return body(run)
        except Exception as error:
            if _TOO_BUSY not in f"{error} {error.__cause__}" or run.stopping():
                raise
    return body(run)


def _again(body: Callable[["LiveRun"], JobResult], run: "LiveRun") -> JobResult | None:
    """Run `body` again. Returns None if the server is down; the record shows the error until the server is back."""
    try:
        outcome = _patiently(body, run)
    except Exception as error:
        mended = in_one_line(error)
        if not isinstance(mended, UnreachableError | TransportError | UnavailableError):
            raise
        run.note_outage(str(mended))
        return None
    run.note_outage(None)
    return outcome


class LiveRun:
    """The `JobRun` of a run in this process."""

    def __init__(self, name: str, options: Mapping[str, Any], settings: RunSettings, listener: Listener | None) -> None:
        self._settings = settings
        self._listener = listener
        self._clock = SystemClock()
        self._runs = RunRecords(Path(settings.state_dir) if settings.state_dir else None)
        self._woken = threading.Event()
        self._spark: SparkSession | None = None
        self._client: Client | None = None
        self._noted_ns = 0
        self._stopping_ns = 0
        self.server = (settings.server or os.environ.get("DRIFTQ_URL") or DEFAULT_URL).rstrip("/")
        self.record = self._runs.begin(name, _harmless(options), self.server)
        self._say()

    # Used by jobs

    @property
    def spark(self) -> "SparkSession":
        """Spark session for the server of the run, created on first use."""
        if self._spark is None:
            settings = self._settings
            self._spark = session(
                self.server,
                master=settings.master,
                remote=settings.remote,
                conf=settings.conf,
                short=settings.short,
            )
            self._listen()  # Spark has replaced our signal handlers
            self._note(state="running")
        return self._spark

    @property
    def client(self) -> Client:
        """Client of the server. Closed when the run ends."""
        if self._client is None:
            self._client = Client(self.server)
        return self._client

    def checkpoint(self, path: Path) -> str:
        """Reserve a checkpoint for this run and return its path. Raises PipelineError while another run has it."""
        text = str(path.absolute())
        holder = self._runs.holder(text)
        if holder is not None and holder.id != self.record.id:
            raise PipelineError(
                f"run {holder.id} of {holder.pipeline!r} uses the same checkpoint: stop it first, "
                f"with `driftq pipeline stop {holder.id}`"
            )
        path.mkdir(parents=True, exist_ok=True)
        if text not in self.record.checkpoints:
            self._note(checkpoints=[*self.record.checkpoints, text])
        return text

    def tell(self, progress: Progress) -> None:
        """Report progress to the listener; write it to the record at most once per second."""
        now = self._clock.monotonic_ns()
        if now - self._noted_ns >= _NOTE_NS:
            self._noted_ns = now
            self._note(state="running", progress=progress)
        else:
            self.record = _with_progress(self.record, progress)
            self._say()

    def stopping(self) -> bool:
        """Whether a stop was requested, by a signal or by `driftq pipeline stop`."""
        if not self._woken.is_set() and self._runs.asked_to_stop(self.record):
            self._woken.set()
        return self._woken.is_set()

    def pause(self, seconds: float) -> bool:
        """Wait, but at most until a stop is requested. Returns whether a stop was requested."""
        until = self._clock.monotonic_ns() + int(seconds * 1e9)
        while not self.stopping() and (left := until - self._clock.monotonic_ns()) > 0:
            self._woken.wait(min(left / 1e9, _LOOK_S))
        return self.stopping()

    def follow(
        self, queries: Sequence["StreamingQuery"], *, ends: bool, idle: Callable[[], None] | None = None
    ) -> Progress:
        """Wait until the queries end, or stop them when a stop is requested, and report progress meanwhile."""
        tallies = [Tally() for _ in queries]
        idle_ns = self._clock.monotonic_ns()
        while any(query.isActive for query in queries):
            if self.stopping() and not self._begins(queries):
                _stop(queries)
            for query, tally in zip(queries, tallies, strict=True):
                self._await(query, queries)
                tally.take(query)
            self.tell(structs.replace(sum_up(tallies, ends=ends), note=_doing(queries)))
            if idle is not None and self._clock.monotonic_ns() - idle_ns >= _IDLE_NS:
                idle()
                idle_ns = self._clock.monotonic_ns()
        for query, tally in zip(queries, tallies, strict=True):
            self._await(query, queries)
            tally.take(query)
        progress = sum_up(tallies, ends=ends)
        self.tell(progress)
        return progress

    def _begins(self, queries: Sequence["StreamingQuery"]) -> bool:
        """Whether a query is still starting its source. False once the stop has waited for 10 s."""
        now = self._clock.monotonic_ns()
        self._stopping_ns = self._stopping_ns or now
        doing = [str(query.status["message"]) for query in queries if query.isActive]
        return now - self._stopping_ns < _BEGIN_NS and any(told.startswith(_BEGINNING) for told in doing)

    def _await(self, query: "StreamingQuery", queries: Sequence["StreamingQuery"]) -> None:
        try:
            query.awaitTermination(_LOOK_S)  # type: ignore[arg-type]  # the stub wants int, but Spark accepts a float
        except BaseException as error:
            _stop(queries)
            if self.stopping() and isinstance(error, Exception):
                return  # the stop has interrupted a batch
            raise

    # Used by the launcher

    def note_outage(self, error: str | None) -> None:
        """Write to the record that the server is down, or with `None` that it is back."""
        if error != self.record.error:
            self._note(error=error)

    def end(self, state: str, error: str | None = None) -> None:
        """Write to the record how the run ended."""
        with suppress(OSError):
            self.record = self._runs.end(self.record, state, error)  # type: ignore[arg-type]
        self._say()

    def close(self) -> None:
        """Close the client if one was opened."""
        if self._client is not None:
            self._client.close()

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM request a stop inside the `with` block. Does nothing outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self._listen()
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _listen(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self._asked)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        """Request a stop at the first signal; raise KeyboardInterrupt at the second."""
        if self._woken.is_set():
            raise KeyboardInterrupt
        self._woken.set()

    def _note(self, **changes: Any) -> None:
        with suppress(OSError):  # a full disk must not stop a pipeline because its record cannot be written
            self.record = self._runs.write(self.record, **changes)
        self._say()

    def _say(self) -> None:
        if self._listener is not None:
            self._listener(self.record)


def _with_progress(record: RunRecord, progress: Progress) -> RunRecord:
    return structs.replace(record, progress=progress)


def _doing(queries: Sequence["StreamingQuery"]) -> str:
    """Return what the first active query is doing, in Spark's words."""
    doing = next((str(query.status["message"]) for query in queries if query.isActive), "")
    return doing.partition(" from ")[0].lower()


def _stop(queries: Sequence["StreamingQuery"]) -> None:
    for query in queries:
        if query.isActive:
            query.stop()


def _harmless(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without possible secrets and without empty values."""
    return {
        name: value
        for name, value in options.items()
        if value not in (None, [], "") and not any(word in name.lower() for word in _SECRET)
    }
