"""Composes the last message of a `driftq serve` that ends without a last checkpoint; it claims only what is known."""

from driftq.cli.exits import ExitCode
from driftq.engine.writer_watch import LOG, SEGMENTS, RestartReason
from driftq.model.units import MS_PER_S
from driftq.server import Server, Unconfirmed


def failed_code(server: Server) -> ExitCode:
    """Return the exit code of a server that ends without a last checkpoint."""
    writers = server.engine.writers
    ended = writers.ended.result() if writers.ended.settled else None
    if ended is RestartReason.LOG_HUNG or writers.hung_ms[LOG]:
        return ExitCode.WAL_HUNG
    return ExitCode.WAL_STOPPED if ended is RestartReason.LOG_STOPPED else ExitCode.FAILED


def last_words(server: Server, what: str) -> str:
    """Return the last message: what happened, and what is known about acked records."""
    writers = server.engine.writers
    if writers.stopped is not None:
        what = f"the log stopped: {writers.stopped}"
    else:
        for writer, written in ((LOG, "the log"), (SEGMENTS, "segments")):
            if waited_ms := writers.hung_ms[writer]:
                what = f"the process that writes {written} has not answered for {waited_ms // MS_PER_S} s"
                break
    unconfirmed = server.unconfirmed()
    words = f"{what}; {what_is_known(unconfirmed)}"
    if any(unconfirmed) and writers.log_pids:
        words += f"; process {', '.join(map(str, writers.log_pids))} may still write them; the next start waits for it"
    return words


def what_is_known(unconfirmed: Unconfirmed) -> str:
    """Return a sentence about which acked records are on disk."""
    if not any(unconfirmed):
        return "all acked records of the classes fsync, disk and memory are on disk; the next start reads the log"
    counts = [f"{count} of class {name}" for name, count in unconfirmed._asdict().items() if count]
    return (
        f"acked records that are not known to be on disk: {' and '.join(counts)}; all of class fsync are on disk; "
        "the next start reads the log and reports missing records of class disk"
    )
