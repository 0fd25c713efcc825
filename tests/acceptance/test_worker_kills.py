"""Workers and their server, killed at random moments under load, again and again.

A loader adds work of four kinds: jobs of a queue and messages of a group, each with and without effects. One process
handles all of it (`killed_worker`), with workers in tasks or in threads. Each round kills the worker, the server, both,
the segment writer, or the server with its writers, and starts them again on what is left.
The handlers' log is compared with what the loader was told, and with what the server says:

- All work that was acked to the loader is handled at least once, whatever was killed.
- A job that has left its queue was handled before: nothing is acked that was not.
- A key is committed once: its result is that of one handler which ended, it never changes, and no handler begins with
  that key after the commit was seen. Half of the handlers return no result, so that the ack of a message is its commit.

A record of class `disk` is acked when the log writer has it, so it may go with that process. Where log writers are
killed the queues are of class `fsync`.

    WORKER_KILLS=50      how many rounds of each test; 6 without it
    SEED=n               other moments
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from driftq.client import Client, Envelope, NotFoundError, Record
from tests.acceptance.killed_worker import GROUP, GROUP_ONCE, KEYS, KINDS, QUEUE, QUEUE_ONCE, READERS, has_result
from tests.acceptance.restarting import PATIENT, Restarting, restarting
from tests.acceptance.test_writer_processes import LOG, SEGMENTS, writer_processes
from tests.support.process import environment

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("WORKER_KILLS") or 6)
SEED = os.environ.get("SEED", "1")
ENDS = ("worker", "server", "both")
WRITERS = ("all", "segments")
_BACKLOG_MAX = 300
"""Of each kind: with more, the loader waits for the worker."""
_PAUSE_S = 0.002
_PATIENCE_S = 120.0


class Log:
    """What the handlers have written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self._read = 0
        self.begun: dict[tuple[str, str], list[str]] = {}
        """The attempts at each piece of work, in their order."""
        self.ended: dict[tuple[str, str], set[str]] = {}

    def read(self) -> None:
        """Take up the lines that are new."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        lines = text[: text.rfind(b"\n") + 1]
        self._read += len(lines)
        for line in lines.decode().splitlines():
            what, kind, work, attempt = line.split()
            if what == "begun":
                self.begun.setdefault((kind, work), []).append(attempt)
            else:
                self.ended.setdefault((kind, work), set()).add(attempt)


class Loader:
    """Adds work until it is stopped; `told` holds what the server has acked."""

    def __init__(self, url: str, log: Log) -> None:
        self._url = url
        self._log = log
        self._over = threading.Event()
        self.told: dict[str, dict[str, int]] = {kind: {} for kind in KINDS}
        """By kind, the id of each piece of work and its seq, or 0."""
        self.failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """End the load. Raise what ended it before."""
        self._over.set()
        self._thread.join()
        if self.failed is not None:
            raise self.failed

    def _run(self) -> None:
        try:
            with Client(self._url, retries=PATIENT, timeout=_PATIENCE_S) as client:
                number = 0
                while not self._over.wait(_PAUSE_S):
                    if len(self.told[QUEUE]) * len(KINDS) - len(self._log.ended) < _BACKLOG_MAX * len(KINDS):
                        number += 1
                        self._add(client, str(number))
        except BaseException as error:  # noqa: BLE001  # the test raises it
            self.failed = error

    def _add(self, client: Client, work: str) -> None:
        for kind in (QUEUE, QUEUE_ONCE):
            self.told[kind][work] = client.topic(kind).append(work).last_seq
        for kind in (GROUP, GROUP_ONCE):
            client.broker.produce(kind, work, envelope=Envelope(idempotency_key=work))
            self.told[kind][work] = 0


class Keys:
    """What the server has said of the keys of effects."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._epoch = client.topic(QUEUE_ONCE).info().epoch
        self._committed: dict[tuple[str, str], tuple[str, int]] = {}
        """The result of a key, and how many handlers had begun with it when that was seen."""

    def look(self, log: Log, told: dict[str, dict[str, int]], *, again: bool = False) -> None:
        """Ask for all keys that were not committed before, or for all. No worker runs meanwhile."""
        for kind in (QUEUE_ONCE, GROUP_ONCE):
            for work, seq in list(told[kind].items()):
                place = kind, work
                if again or place not in self._committed:
                    self._ask(log, place, seq)

    def _ask(self, log: Log, place: tuple[str, str], seq: int) -> None:
        kind, work = place
        of_queue = (KEYS, f"queue:{kind}", f"{kind}:{self._epoch}:{seq}")
        try:
            entry = self._client.broker.idempotency.get(*(of_queue if kind == QUEUE_ONCE else (kind, READERS, work)))
        except NotFoundError:
            assert place not in self._committed, f"the commit of {place} is gone"
            return
        if entry.status != "COMMITTED":
            assert place not in self._committed, f"{place} was committed and is {entry.status}"
            return
        result = b64decode(entry.result).decode()
        ended = log.ended.get(place, set())
        assert result in ended if has_result(work) else ended and not result, (
            f"{place} is committed by {result!r}, which has not ended: {entry}, {log.begun[place]}"
        )
        before, _ = self._committed.setdefault(place, (result, len(log.begun[place])))
        assert before == result, f"{place} was committed by {before} and then by {result}"

    def check_not_begun_again(self, log: Log) -> None:
        """Compare with the log: no handler has begun after a commit that was seen."""
        for place, (result, begun) in self._committed.items():
            late = log.begun[place][begun:]
            assert not late, f"{place} was committed by {result}, and {late} began after that"

    def count(self) -> int:
        """Return how many are committed."""
        return len(self._committed)


@contextmanager
def working(url: str, log: Log, mode: str) -> Iterator["subprocess.Popen[bytes]"]:
    """The worker, with its handlers in `tasks` or `threads`, from its first handler on; it is gone in the end."""
    log.read()
    before = sum(map(len, log.begun.values()))
    script = Path(__file__).with_name("killed_worker.py")
    with subprocess.Popen(
        [sys.executable, str(script), url, str(log.path), mode],
        stderr=subprocess.PIPE,
        env=environment(PYTHONPATH=str(Path(__file__).parents[2])),
    ) as process:
        try:
            wait_until(log, lambda: sum(map(len, log.begun.values())) > before, process)
            yield process
        finally:
            process.kill()


def wait_until(log: Log, done: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    """Wait for what a worker's log shows. Raise AssertionError if the worker ends or takes too long."""
    deadline = time.monotonic() + _PATIENCE_S
    while not done():
        assert process.poll() is None, f"the worker has ended: {process.communicate()[1].decode()[-2000:]}"
        assert time.monotonic() < deadline, "the worker has not done its work in time"
        time.sleep(0.02)
        log.read()


def check_queues(client: Client, log: Log, told: dict[str, dict[str, int]]) -> None:
    """Of jobs that the loader was told of before: each is in its queue, or was handled."""
    for kind in (QUEUE, QUEUE_ONCE):
        left = {str(item.data) for item in client.topic(kind).read() if isinstance(item, Record)}
        unhandled = [work for work in told[kind] if work not in left and (kind, work) not in log.ended]
        assert not unhandled, f"{kind}: {unhandled[:5]} are acked and were not handled"


class Play:
    """Rounds of kills of some kinds, on one server with one load."""

    def __init__(self, server: Restarting, client: Client, log: Log, *, kinds: tuple[str, ...], mode: str) -> None:
        self.server = server
        self.client = client
        self.log = log
        self.kinds = kinds
        self.mode = mode
        self.keys = Keys(client)
        self.loader = Loader(client.url, log)

    def round(self, number: int) -> None:
        """One round, from a running server to a running server; the worker is gone in the end."""
        server, log = self.server, self.log
        rng = random.Random(f"{SEED}.{self.mode}.{number}")
        kind = self.kinds[number % len(self.kinds)]
        with working(f"http://{server.address}", log, self.mode) as worker:
            time.sleep(rng.uniform(0.05, 0.6))  # the moment is what the round is about
            if kind == "server":
                server.again(signal.SIGKILL)
            elif kind in WRITERS:
                kill_writers(server, kind)
            if kind == "server" or kind in WRITERS:
                time.sleep(rng.uniform(0.05, 0.6))  # the worker goes on with a server that has forgotten its leases
            assert worker.poll() is None, "the worker has ended by itself"
            if kind == "both":
                worker.kill()
        if kind in ("both", "segments"):
            server.again(signal.SIGKILL)
        log.read()
        told = {name: dict(works) for name, works in self.loader.told.items()}
        check_queues(self.client, log, told)
        self.keys.check_not_begun_again(log)
        self.keys.look(log, told)

    def finish(self) -> None:
        """Let a worker do all that is left, and stop it; compare."""
        client, log, keys = self.client, self.log, self.keys
        self.loader.stop()
        told = self.loader.told
        wanted = {(kind, work) for kind in KINDS for work in told[kind]}
        with working(f"http://{self.server.address}", log, self.mode) as worker:
            wait_until(log, lambda: wanted <= log.ended.keys(), worker)
            wait_until(log, lambda: all_settled(client), worker)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(_PATIENCE_S) == 0
        log.read()
        keys.check_not_begun_again(log)
        keys.look(log, told, again=True)
        assert keys.count() == len(told[QUEUE_ONCE]) + len(told[GROUP_ONCE])
        assert set(client.broker.topics()) == {GROUP, GROUP_ONCE, KEYS}, "a message was given up"


def kill_writers(server: Restarting, kind: str) -> None:
    """Kill the segment writer, without which the server goes on; or the server and both writers, and start it again."""
    writers = writer_processes(server.server)
    os.kill(writers[SEGMENTS], signal.SIGKILL)
    if kind == "all":
        os.kill(writers[LOG], signal.SIGKILL)
        server.again(signal.SIGKILL)


def all_settled(client: Client) -> bool:
    """Whether the queues are empty and the groups have done everything."""
    lags = [part.lag for kind in (GROUP, GROUP_ONCE) for row in client.broker.groups(kind) for part in row.partitions]
    return not sum(lags) and not any(list(client.topic(kind).read()) for kind in (QUEUE, QUEUE_ONCE))


def played(directory: Path, *, kinds: tuple[str, ...], mode: str, durability: str) -> None:
    """Play all rounds on a fresh server, let everything be handled, and compare."""
    log = Log(directory / "handled")
    with restarting(directory) as server, Client(f"http://{server.address}", retries=PATIENT) as client:
        for kind in (QUEUE, QUEUE_ONCE):
            client.topic(kind).create(type="queue", durability=durability)
        for kind in (GROUP, GROUP_ONCE, KEYS):
            client.broker.create_topic(kind)
        play = Play(server, client, log, kinds=kinds, mode=mode)
        try:
            for number in range(ROUNDS):
                play.round(number)
        finally:
            play.loader.stop()
        play.finish()
    assert all(len(works) > 10 * ROUNDS for works in play.loader.told.values())
    again = sum(len(attempts) > 1 for attempts in log.begun.values())
    assert again, "no kill hit a handler: nothing was tested"


def test_killed_workers_and_servers_lose_no_work_and_commit_every_effect_once(tmp_path: Path) -> None:
    played(tmp_path, kinds=ENDS, mode="tasks", durability="disk")


def test_killed_workers_with_threads_servers_and_writers_lose_no_work_and_commit_every_effect_once(
    tmp_path: Path,
) -> None:
    played(tmp_path, kinds=ENDS + WRITERS, mode="threads", durability="fsync")
