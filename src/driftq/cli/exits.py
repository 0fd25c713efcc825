"""Defines how a command ends: its exit code, and the error that becomes one line on standard error.

Every command ends with one of these codes; `driftq help exit-codes` prints them.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of all commands, for scripts."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    DENIED = 4
    ABSENT = 5
    BAD_INPUT = 6
    DAMAGED = 7
    WAL_STOPPED = 8
    WAL_HUNG = 9
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.OK: "the command succeeded",
    ExitCode.FAILED: "refused or failed; one line on standard error gives the reason",
    ExitCode.USAGE: "wrong usage, or a question without a terminal to ask (pass --yes)",
    ExitCode.UNREACHABLE: "no server answers at this URL, or it is not ready",
    ExitCode.DENIED: "the API key is missing, unknown, or not allowed to do this",
    ExitCode.ABSENT: "the topic, router, run or job does not exist",
    ExitCode.BAD_INPUT: "bad input; the message reports how much was processed",
    ExitCode.DAMAGED: "damage was found",
    ExitCode.WAL_STOPPED: "the server's log stopped, because its writer died or a sync failed; start the server again",
    ExitCode.WAL_HUNG: "the server's log writer did not answer; check the disk, then start the server again",
    ExitCode.INTERRUPTED: "interrupted",
}
"""Meaning of each code; docs/cli.md has the same texts."""

EXIT_CODES = (
    "Exit codes: 0 success, 1 refused or failed (one line on standard error gives the reason), 2 wrong usage; "
    "`driftq help exit-codes` lists all codes."
)
"""Printed at the end of every command's help."""


class CommandError(Exception):
    """Ends a command: what is wrong, what to do next, and the exit code."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
