"""A real server and the processes that write for it, killed at random moments under a mixed load, again and again.

Each round starts a server on what the kill before it left, compares what is there with what clients were told, lets
clients work for a fraction of a second, and kills: the server alone, the log writer, the segment writer, or all. One
directory lives through `_LIFE` rounds and ends with a clean stop and `driftq verify`.

    SERVER_KILLS=500     how many rounds; 10 without it
    KILL_KIND=server     only kills of this kind (`KINDS`); all of them in turn without it
    SEED=n               other moments
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from tests.acceptance.test_writer_processes import LOG, SEGMENTS, writer_processes
from tests.support.process import ServerProcess, environment, serving

pytestmark = pytest.mark.slow

_ALL_KINDS = ("server", "log", "server", "segments", "all")
_ONLY = os.environ.get("KILL_KIND")
assert not _ONLY or _ONLY in _ALL_KINDS, f"KILL_KIND is one of {', '.join(sorted(set(_ALL_KINDS)))}"
KINDS = (_ONLY,) if _ONLY else _ALL_KINDS
ROUNDS = int(os.environ.get("SERVER_KILLS") or 10)
SEED = os.environ.get("SEED", "1")
_LIFE = 20
_FLAGS = ("--segment-max-events", "400", "--checkpoint-wal-bytes", "400000", "--wal-file-bytes", "1048576")
_CLIENT_S = 10.0

TOPICS: dict[str, dict[str, Any]] = {
    "money": {"durability": "fsync"},
    "events": {"durability": "disk"},
    "recent": {"durability": "disk", "cap_records": 300},
    "idle": {"durability": "disk"},
    "cache": {"durability": "memory"},
    "copies": {"durability": "fsync"},
    "mirror": {"durability": "disk"},
    "jobs": {"type": "queue", "durability": "fsync"},
}
PROMISED = ("money", "events", "recent", "idle", "copies", "mirror", "jobs")
"""The topics in which no seq is ever given to two records."""


class Ledger:
    """What clients were told, over all rounds of one directory."""

    def __init__(self) -> None:
        self.acked: dict[str, dict[int, str]] = {name: {} for name in TOPICS}
        self.seen: dict[str, dict[int, str]] = {name: {} for name in TOPICS}
        """What readers were shown."""
        self.doomed: set[int] = set()
        """Acked records of `money` that a delete may take."""
        self.deleted: set[int] = set()
        """Those that an acked delete took."""
        self.asked: set[int] = set()
        """Jobs whose ack was asked for."""
        self.done: set[int] = set()
        """Jobs whose ack was acked."""
        self.holes: dict[str, list[dict[str, Any]]] = {name: [] for name in TOPICS}
        self.rounds: dict[str, int] = dict.fromkeys(KINDS, 0)


class Caller:
    """One connection of one client."""

    def __init__(self, server: ServerProcess) -> None:
        self._connection = HTTPConnection(server.address, timeout=_CLIENT_S)

    def __call__(self, method: str, path: str, value: object = None) -> tuple[int, dict[str, Any]]:
        body = None if value is None else json.encode(value)
        self._connection.request(method, path, body, {} if body is None else {"content-type": "application/json"})
        reply = self._connection.getresponse()
        return reply.status, json.decode(reply.read(), type=dict[str, Any])

    def close(self) -> None:
        self._connection.close()


Client = Callable[[Caller, Ledger, random.Random, str], None]


def append(call: Caller, ledger: Ledger, topic: str, datas: list[str], tag: str | None = None) -> list[int]:
    records = [{"data": data} | ({} if tag is None else {"tag": tag}) for data in datas]
    status, body = call("POST", f"/v0/topics/{topic}", {"records": records})
    if status not in (200, 201):
        return []
    ledger.acked[topic].update(zip(body["seqs"], datas, strict=True))
    return list(body["seqs"])


def pay(call: Caller, ledger: Ledger, rng: random.Random, mark: str) -> None:
    """Write to an `fsync` topic; sometimes records that are deleted again."""
    append(call, ledger, "money", [f"{mark}.{n}" for n in range(rng.choice((1, 1, 20)))])
    if rng.random() < 0.2:
        ledger.doomed.update(append(call, ledger, "money", [f"{mark}.doomed"], "doomed"))
        doomed = set(ledger.doomed)
        status, _ = call("POST", "/v0/topics/money/delete", {"match": "doomed"})
        if status == 200:
            ledger.deleted |= doomed


def log(call: Caller, ledger: Ledger, rng: random.Random, mark: str) -> None:
    """Write to `disk` and `memory` topics, small and large, and now and then to those that routers copy into."""
    topic = rng.choice(("events",) * 6 + ("recent",) * 3 + ("cache",) * 3 + ("mirror", "copies"))
    padding = "x" * rng.choice((0, 0, 0, 2000))
    append(call, ledger, topic, [f"{mark}.{n}{padding}" for n in range(rng.choice((1, 1, 1, 5, 100)))])


def work(call: Caller, ledger: Ledger, rng: random.Random, mark: str) -> None:
    """Push jobs, take them, and ack some."""
    append(call, ledger, "jobs", [f"{mark}.job"])
    status, body = call("POST", "/v0/topics/jobs/claim", {"node": mark, "max": 3})
    seqs = [job["$seq"] for job in body["claimed"]] if status == 200 else []
    if seqs and rng.random() < 0.7:
        ledger.asked.update(seqs)
        status, body = call("POST", "/v0/topics/jobs/ack", {"node": mark, "seqs": seqs})
        if status == 200:
            ledger.done |= set(seqs) - set(body["skipped"])


def look(call: Caller, ledger: Ledger, rng: random.Random, _: str) -> None:
    """Read the end of a topic: what is shown is never another record later."""
    topic = rng.choice(("events", "recent", "copies", "mirror"))
    cursor = max(0, max(ledger.seen[topic], default=0) - 50)
    status, page = call("POST", f"/v0/topics/{topic}/diff", {"from_seq": cursor, "limit": 300})
    if status == 200:
        for record in page["records"]:
            note(ledger, topic, record["$seq"], record["data"])


CLIENTS: tuple[Client, ...] = (pay, log, log, log, work, look)


def note(ledger: Ledger, topic: str, seq: int, data: str) -> None:
    """A reader was shown a record."""
    if topic in PROMISED:
        before = ledger.seen[topic].setdefault(seq, data)
        assert before == data, f"{topic}: seq {seq} was {before[:40]!r} and is {data[:40]!r}"


def client(server: ServerProcess, ledger: Ledger, job: Client, seed: str, over: threading.Event) -> None:
    """One client, until its server does not answer any more."""
    rng = random.Random(seed)
    number = 0
    with closing(Caller(server)) as call, suppress(OSError, HTTPException):
        while not over.is_set():
            number += 1
            job(call, ledger, rng, f"{seed}.{number}")


def read_all(call: Caller, topic: str) -> dict[int, str]:
    found: dict[int, str] = {}
    cursor = 0
    while True:
        status, page = call("POST", f"/v0/topics/{topic}/diff", {"from_seq": cursor, "limit": 1000})
        assert status == 200, page
        found.update((record["$seq"], record["data"]) for record in page["records"])
        cursor = page["next_from_seq"]
        if page["caught_up"]:
            return found


def compare(server: ServerProcess, ledger: Ledger, kind: str) -> None:
    """What is there after a kill of this kind, with what clients were told before it."""
    with closing(Caller(server)) as call:
        for topic in TOPICS:
            compare_topic(call, ledger, topic, kind)


def compare_topic(call: Caller, ledger: Ledger, topic: str, kind: str) -> None:
    """One of them."""
    found = read_all(call, topic)
    _, manifest = call("GET", f"/v0/topics/{topic}/segments")
    acked = ledger.acked[topic]
    new = [hole for hole in manifest["holes"] if hole not in ledger.holes[topic]]
    if kind == "server":
        assert not new, f"after a kill of the server alone: {topic} has {new}"
    for hole in manifest["holes"]:
        if not hole.get("at_most"):
            missing = [seq for seq in acked if hole["from"] <= seq <= hole["to"] and seq not in found]
            assert missing, f"{topic}: nothing that was acked is missing in {hole}"
    ledger.holes[topic] = manifest["holes"]
    if topic in PROMISED:
        for seq, data in found.items():
            note(ledger, topic, seq, data)
            assert acked.get(seq, data) == data, f"{topic}: seq {seq} was acked with other data"
        assert manifest["head_seq"] >= max(acked, default=0), f"{topic}: a seq would be given out again"
    if topic == "money":
        lost = acked.keys() - found.keys() - ledger.doomed
        assert not lost, f"money: acked as fsync and gone: {sorted(lost)[:5]}"
        assert not ledger.deleted & found.keys(), "money: a deleted record is back"
    if topic == "copies":
        assert not acked.keys() - found.keys(), (
            f"copies: acked as fsync and gone: {sorted(acked.keys() - found.keys())[:5]}"
        )
    if topic == "jobs":
        lost = acked.keys() - found.keys() - ledger.asked
        assert not lost, f"jobs: {sorted(lost)[:5]} are gone and nobody did them"
        assert not ledger.done & found.keys(), "jobs: a job that was acked is back"
    if topic == "events" and kind == "server":
        gone = [seq for seq in acked.keys() - found.keys() if not covered(seq, manifest["holes"])]
        assert not gone, f"events: acked as disk and gone: {sorted(gone)[:5]}"
    if topic in ("copies", "mirror"):
        assert len(set(found.values())) == len(found), "a record was copied twice"


def covered(seq: int, holes: list[dict[str, Any]]) -> bool:
    return any(hole["from"] <= seq <= hole["to"] for hole in holes)


def kill(server: ServerProcess, kind: str, rng: random.Random) -> None:
    """Kill what the kind says; in the end the server is gone."""
    writers = writer_processes(server)
    if kind == "all":
        for pid in rng.sample([*writers.values(), server.process.pid], len(writers) + 1):
            os.kill(pid, signal.SIGKILL)
    elif kind != "server":
        os.kill(writers[LOG if kind == "log" else SEGMENTS], signal.SIGKILL)
        time.sleep(rng.uniform(0, 0.2))  # the server goes on for a while, with or without a log
    server.process.kill()
    server.process.wait()


def live(directory: Path, ledger: Ledger, number: int) -> None:
    """One round, from a start to a kill."""
    rng = random.Random(f"{SEED}.{number}")
    kind = KINDS[number % len(KINDS)]
    with serving(directory, *_FLAGS) as server:
        server.wait_ready()
        if number % _LIFE:
            compare(server, ledger, KINDS[(number - 1) % len(KINDS)])
        else:
            prepare(server, ledger)
        over = threading.Event()
        threads = [
            threading.Thread(target=client, args=(server, ledger, job, f"{number}.{place}", over))
            for place, job in enumerate(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        time.sleep(rng.uniform(0.05, 0.7))  # the moment is what the round is about
        kill(server, kind, rng)
        over.set()
        for thread in threads:
            thread.join()
    ledger.rounds[kind] += 1


def prepare(server: ServerProcess, ledger: Ledger) -> None:
    """The topics of a new directory."""
    with closing(Caller(server)) as call:
        for name, config in TOPICS.items():
            assert call("PUT", f"/v0/topics/{name}", config)[0] in (200, 201)
        for dest in ("copies", "mirror"):
            assert call("PUT", f"/v0/routers/to-{dest}", {"source": "events", "dest": dest})[0] in (200, 201)
        append(call, ledger, "idle", ["written once"])


@pytest.mark.parametrize("first", range(0, ROUNDS, _LIFE))
def test_whatever_is_killed_nothing_acked_as_fsync_is_lost_and_every_loss_that_is_told_is_one(
    tmp_path: Path, first: int
) -> None:
    """row: F-CRASH-1

    proves: G-REC-15, G-DUR-1, G-SEQ-2, G-TOMB-9, G-COPY-3
    """
    ledger = Ledger()
    last = min(first + _LIFE, ROUNDS)
    for number in range(first, last):
        live(tmp_path, ledger, number)
    with serving(tmp_path, *_FLAGS) as server:
        server.wait_ready()
        compare(server, ledger, KINDS[(last - 1) % len(KINDS)])
        assert server.stop() == 0
    verified = subprocess.run(
        [sys.executable, "-m", "driftq", "verify", "--data-dir", str(tmp_path / "data")],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert sum(ledger.rounds.values()) == last - first
    told = {name: len(acked) for name, acked in ledger.acked.items()}
    assert all(told.values()), told


def test_a_kill_of_server_and_log_writer_is_told_as_up_to_so_many(tmp_path: Path) -> None:
    """row: F-CRASH-2

    proves: G-TOMB-9
    """
    with serving(tmp_path) as server:
        server.wait_ready()
        assert server.ask("POST", "/v0/topics/t", {"records": [{"data": 1}] * 3})[0] == 201
        kill(server, "all", random.Random(1))
    with serving(tmp_path) as server:
        server.wait_ready()
        assert server.ask("GET", "/v0/ready")[1]["holes"]["at_most"] == 1
        assert server.metric("driftq_holes_at_most") == 1
        _, page = server.ask("POST", "/v0/topics/t/diff", {"from_seq": 3})
        assert (page["tombstone"]["reason"], page["tombstone"]["at_most"]) == ("crash", True)
