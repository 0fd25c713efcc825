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
    ExitCode.OK: "all is well",
    ExitCode.FAILED: "refused or failed; one line on standard error says why",
    ExitCode.USAGE: "wrong usage, or an answer was needed and there is no terminal to ask at",
    ExitCode.UNREACHABLE: "no server answers there, or it is not ready",
    ExitCode.DENIED: "the server wants another API key",
    ExitCode.ABSENT: "there is no such topic, router, run or job",
    ExitCode.BAD_INPUT: "the input is not what it should be; what was taken before is told",
    ExitCode.DAMAGED: "damage was found",
    ExitCode.WAL_STOPPED: "the server's log stopped, because its writer died or a sync failed; start the server again",
    ExitCode.WAL_HUNG: "the server's log writer did not answer; check the disk, then start the server again",
    ExitCode.INTERRUPTED: "interrupted",
}
"""Meaning of each code; docs/cli.md has the same texts."""

EXIT_CODES = (
    "Exit codes: 0 all is well, 1 refused or failed (one line on standard error says why), 2 wrong usage; "
    "`driftq help exit-codes` tells the others."
)
"""Printed at the end of every command's help."""


class CommandError(Exception):
    """Ends a command: what is wrong, what to do next, and the exit code."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
