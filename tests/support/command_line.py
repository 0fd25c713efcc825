"""The commands of `driftq` as a user runs them: in this process where that is the same, else in one of their own."""

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from msgspec import json

from driftq.cli.commands import make_app
from driftq.cli.lazy_groups import run
from tests.support.process import PATIENCE_S, ServerProcess, environment


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, decoded."""
        return json.decode(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """The words of its lines."""
        return [line.split() for line in self.out.splitlines()]


def apart(*arguments: object, given: bytes = b"", **variables: str) -> Done:
    """Run a command in a process of its own, with something to read."""
    done = subprocess.run(
        [sys.executable, "-m", "driftq", *map(str, arguments)],
        input=given,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
        env=environment(**variables),
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


class CommandLine:
    """Commands for one server."""

    def __init__(self, server: ServerProcess, captured: pytest.CaptureFixture[bytes]) -> None:
        self.url = f"http://{server.address}"
        self._captured = captured

    def __call__(self, *arguments: str) -> Done:
        """Run a command here."""
        self._captured.readouterr()
        code = run(make_app(), arguments)
        shown = self._captured.readouterr()
        return Done(code, shown.out.decode(), shown.err.decode())

    def ok(self, *arguments: str) -> Done:
        """Run a command that works."""
        done = self(*arguments)
        assert done.code == 0, done
        return done

    def apart(self, *arguments: str, given: bytes = b"", **variables: str) -> Done:
        """Run a command in a process of its own, with something to read."""
        return apart(*arguments, given=given, **{"DRIFTQ_URL": self.url, **variables})

    def start(self, *arguments: str, given: int | None = None) -> subprocess.Popen[bytes]:
        """Start a command that goes on."""
        return subprocess.Popen(
            [sys.executable, "-m", "driftq", *arguments],
            stdin=given,
            preexec_fn=_hear_interrupts,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(DRIFTQ_URL=self.url),
        )


def _hear_interrupts() -> None:
    """As at a terminal, even where the tests run in the background, whose children are deaf to them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def at_a_terminal(arguments: Sequence[str], *, typed: bytes = b"", **variables: str) -> tuple[int, str]:
    """Run Python with all its streams at a terminal; its exit code, and what appeared there."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(TERM="xterm", COLUMNS="200", **variables),
    )
    os.close(theirs)
    os.write(ours, typed)
    seen = b""
    try:
        while select.select([ours], [], [], PATIENCE_S)[0]:
            piece = os.read(ours, 65536)
            if not piece:
                break
            seen += piece
    except OSError:
        pass  # the other end is closed: that is how a terminal tells
    finally:
        os.close(ours)
        child.wait(PATIENCE_S)
    return child.returncode, seen.decode()
