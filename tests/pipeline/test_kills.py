"""Exactly once, whoever is killed whenever: seeded runs, each with one kill at a random step.

Rows go from a topic to a topic through Spark while a process is killed: a task's, the driver's JVM, the whole driver,
or the server; at the n-th chunk that is staged or the n-th batch that is committed, before the server hears of it or
before its answer is heard. A kill at a commit's answer is one between the commit and Spark's own log. Whatever was
killed is started again, until all is copied. Then the topic has each row once, in the order of its source. An archive
is killed at some time behind a read, for its own steps are seen by nobody; then it is equal to its topic.

`KILLS=100` makes a hundred runs of each kind; without it there are a few.
"""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pytest
from msgspec import json

from driftq.client import Client
from driftq.pipeline.lake.archive_check import verify
from driftq.pipeline.lake.delta_tables import Lake
from driftq.pipeline.lake.server_topics import ServerTopics
from tests.pipeline.between import Between, Harm, child_of, kill, owner_of
from tests.pipeline.topics import ask, fresh, values, write
from tests.support.process import ROOT, ServerProcess, environment

ROWS = 2000
AT_ONCE = 500
BATCHES = ROWS // AT_ONCE
KINDS = ("task", "jvm", "driver", "server")
SAMPLE, ARCHIVES = 2, 1
"""Kills that every run of the tests makes."""
PATIENCE_S = 240.0
TRIES = 8
"""More than the one that a kill costs: a busy machine lets a query fail by itself."""


class Server:
    """A server that comes back after a kill, on its data."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.process = self._started()

    def _started(self) -> ServerProcess:
        process = ServerProcess(self._directory)
        process.wait_ready()
        return process

    def kill(self) -> None:
        """And start it again."""
        self.process.stop(signal.SIGKILL)
        self.process = self._started()

    def address(self) -> str:
        """Where it is at this moment."""
        return self.process.address


class Driver:
    """A Spark driver that comes back after a kill."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.said = ""
        """Its last words."""
        self._process: subprocess.Popen[str] | None = None

    def run(self, job: dict[str, Any]) -> bool:
        """Have it done; False where the driver died, or says that it failed."""
        if self._process is None:
            self._process = self._started()
        answer = self._told(self._process, json.encode(job).decode() + "\n")
        if not answer:
            self.kill()
            return False
        self.said = answer
        return "done" in json.decode(answer)

    def kill(self) -> None:
        """With all that it has started."""
        if self._process is not None:
            process, self._process = self._process, None
            kill(child_of(process.pid, "java"))
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=PATIENCE_S)

    def kill_group(self) -> None:
        """The same, for another thread: whoever waits for an answer finds that there is none."""
        if self._process is not None:
            self.kill_jvm()
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill_jvm(self) -> None:
        """Only that; its Python processes find out by themselves."""
        if self._process is not None:
            kill(child_of(self._process.pid, "java"))

    def _started(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.driver", self._url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            cwd=ROOT.parent,
            text=True,
            start_new_session=True,
        )
        assert self._told(process, None) == "ready\n"
        return process

    def _told(self, process: "subprocess.Popen[str]", line: str | None) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        watch = threading.Timer(PATIENCE_S, process.kill)
        watch.start()
        try:
            return _exchanged(process.stdin, process.stdout, line)
        finally:
            watch.cancel()


def _exchanged(stdin: IO[str], stdout: IO[str], line: str | None) -> str:
    try:
        if line is not None:
            stdin.write(line)
            stdin.flush()
        return stdout.readline()
    except OSError:
        return ""


class Field:
    """Where kills happen."""

    def __init__(self, directory: Path) -> None:
        self.server = Server(directory)
        self.between = Between(self.server.address)
        self.driver = Driver(self.between.url)
        self.source = fresh("source")
        # In class `disk` a killed server leaves a hole behind its last record, and a reader stops there, as it should.
        ask(self.server.process, "PUT", f"/v0/topics/{self.source}", {"durability": "fsync"})
        write(self.server.process, self.source, list(range(ROWS)))

    def close(self) -> None:
        """All of it."""
        self.driver.kill()
        self.between.close()
        self.server.process.process.kill()
        self.server.process.process.communicate(timeout=PATIENCE_S)

    def harm(self, chance: random.Random, kind: str, endings: dict[str, int], *, late: bool = False) -> Harm:
        """A kill of a kind at a random step; `endings` has the requests there are, and how many of each."""
        ending = chance.choice(sorted(endings))
        number = chance.randint(1, endings[ending])
        act = {
            "task": lambda port: kill(owner_of(port)),
            "jvm": lambda _: self.driver.kill_jvm(),
            "driver": lambda _: self.driver.kill_group(),
            "server": lambda _: self.server.kill(),
        }[kind]
        return Harm(ending, number, chance.random() < 0.5, act, chance.random() * 2 if late else None)

    def done_in_spite(self, job: dict[str, Any], harm: Harm) -> None:
        """Have a job done, with a kill on the way."""
        self.between.arm(harm)
        for _ in range(TRIES):
            if self.driver.run(job):
                break
        else:
            pytest.fail(f"{job} is not done in many tries: {self.driver.said}")
        assert self.between.done.is_set(), "nobody was killed: the step there should be one at did not come"


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    made = Field(tmp_path_factory.mktemp("kills"))
    yield made
    made.close()


def seeds(sample: int) -> list[int]:
    """As many as are asked for."""
    return list(range(int(os.environ.get("KILLS") or sample)))


def kind_of(seed: int) -> str:
    """Every kind comes, whatever the number of runs."""
    return KINDS[seed % len(KINDS)]


@pytest.mark.parametrize("seed", seeds(SAMPLE))
def test_a_topic_has_each_row_once_and_in_order_after_a_kill(field: Field, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    to = fresh("to")
    harm = field.harm(chance, kind_of(seed), {"/stage": 2 * BATCHES, "/commit": BATCHES})
    checkpoint = str(tmp_path / "checkpoint")
    field.done_in_spite(
        {"job": "copy", "source": field.source, "to": to, "checkpoint": checkpoint, "at_once": AT_ONCE}, harm
    )
    assert values(field.server.process, to) == list(range(ROWS))


@pytest.mark.parametrize("seed", seeds(ARCHIVES))
def test_an_archive_is_equal_to_its_topic_after_a_kill(field: Field, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    lake = tmp_path / "lake"
    kind = kind_of(seed + 1)
    harm = field.harm(chance, kind, {"/diff": BATCHES}, late=kind in ("jvm", "driver"))
    job = {"job": "archive", "source": field.source, "lake": str(lake), "state": str(tmp_path), "at_once": AT_ONCE}
    field.done_in_spite(job, harm)
    with Client(f"http://{field.server.address()}") as client:
        [finding] = verify(Lake(lake), ServerTopics(client), [field.source])
    assert (finding.verdict, finding.lake_rows, finding.differences) == ("equal", ROWS, [])
