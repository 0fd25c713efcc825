"""A real process on a real disk, killed at random moments: what it had acked is there, whatever it was doing.

The moments are drawn over its progress, not over time: after so many acks, when it has opened, while it recovers. One
directory lives through all the kills of a test, so each start finds what the kills before it left behind. With it dies
who writes for it, or is left to finish. What is there
after a kill is read from a copy: the next worker then recovers from the crash itself, not from a clean stop. `SEED=n`
draws other moments.
"""

import asyncio
import os
import random
import shutil
import signal
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec import Struct, json

from driftq.codec.record_json import Fields, render_records
from driftq.codec.write_body import make_rows
from driftq.engine.block_fetch import Fetch
from driftq.engine.engine import Engine
from driftq.engine.read.topic_page import PageQuery
from driftq.model.limits import RESERVE_MAX
from driftq.model.tombstone import Hole, Reason
from driftq.model.topic_config import Durability
from driftq.system.clock import SystemClock
from driftq.system.disk import OsDisk, OsFile, Site
from driftq.system.runtime import AsyncioRuntime
from tests.support import process
from tests.support.worker import batch, settings, topic_of

LIVES = [(1, 40), (40, 400), (400, 2000)]
"""How many acks a worker gives before it is killed: barely begun, in the middle of it, long enough for checkpoints."""
FIRST_OF_ROUND = 100_000
"""How far apart the batch numbers of two workers are: no batch of one can be taken for one of another."""

SEED = os.environ.get("SEED", "1")

pytestmark = pytest.mark.slow


class Ack(NamedTuple):
    writer: int
    number: int
    first_seq: int
    last_seq: int
    synced_seq: int


class Record(Struct, rename={"seq": "$seq", "ts": "$ts"}):
    seq: int
    ts: int
    data: str

    @property
    def batch(self) -> tuple[int, int]:
        writer, number, _ = self.data.split(".", 2)
        return int(writer), int(number)


class Found(NamedTuple):
    """A topic as a start shows it."""

    text: bytes
    holes: list[Hole]
    head: int
    next_seq: int

    def records(self, behind: int = 0) -> list[Record]:
        """The records of the text, or of its part behind some bytes that were looked at before."""
        return json.decode(b"[%b]" % self.text[behind:].lstrip(b","), type=list[Record])

    def lost(self) -> set[int]:
        """The seqs of all holes."""
        return {seq for hole in self.holes for seq in range(hole.first, hole.last + 1)}


def live_and_die(data_dir: Path, durability: Durability, turn: int, dice: random.Random) -> list[Ack]:
    """One worker, killed when its progress has reached a drawn point; every ack it had given."""
    moment = dice.choice(["begun", "open", *["acks"] * 8])
    acks_max = dice.randint(*dice.choice(LIVES)) if moment == "acks" else 0
    loop = dice.choice(["uvloop", "asyncio"])
    acks: list[Ack] = []
    shards = dice.randint(1, 3)
    writer_processes = dice.choice([0, 1, shards + 1, shards + 1])
    arguments = (durability, loop, str(shards), str(writer_processes), str(turn * FIRST_OF_ROUND))
    kill = dice.choice([os.kill, os.killpg])
    with process.worker(data_dir, *arguments) as (killed, told):
        for line in told:
            if line == moment.encode() + b"\n":
                break
            if line not in (b"begun\n", b"open\n"):
                acks.append(Ack(*map(int, line.split())))
                if len(acks) == acks_max:
                    break
        kill(killed.pid, signal.SIGKILL)
        acks += [Ack(*map(int, line.split())) for line in told if line != b"open\n"]
        assert killed.stderr is not None
        errors = killed.stderr.read().decode()
    assert killed.returncode == -9, errors
    # Who writes for it may outlive it, for as long as it takes to write what it was sent.
    OsDisk().lock(str(data_dir / ".driftq.lock"), b"").release()
    return acks


class UnsyncedFile(OsFile):
    def sync(self, site: Site) -> None:
        """Nobody will miss it."""


class UnsyncedDisk(OsDisk):
    """A disk for a copy that is thrown away: the next crash is not its business, and a sync takes its time."""

    def open(self, path: str) -> UnsyncedFile:
        return UnsyncedFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def create(self, path: str) -> UnsyncedFile:
        return UnsyncedFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))

    def sync_dir(self, directory: str, site: Site) -> None:
        """Nor this."""


def find(data_dir: Path, copy: Path) -> dict[str, Found]:
    """What a start on a copy of the directory shows, topic by topic."""
    shutil.copytree(data_dir, copy)
    try:
        return asyncio.run(_find(copy))
    finally:
        shutil.rmtree(copy)


async def _find(data_dir: Path) -> dict[str, Found]:
    runtime = AsyncioRuntime(asyncio.get_running_loop())
    engine = Engine(UnsyncedDisk(), SystemClock(), runtime, settings(str(data_dir)), pid=os.getpid())
    try:
        return {topic.name: await _read(engine, runtime, topic.name) for topic in engine.catalog.visible()}
    finally:
        await runtime.future(engine.close())


async def _read(engine: Engine, runtime: AsyncioRuntime, name: str) -> Found:
    pages = []
    cursor, caught_up = 0, False
    while not caught_up:
        page = engine.diff(name, PageQuery(from_seq=cursor, limit=1000))
        if isinstance(page, Fetch):
            await runtime.future(page)
            continue
        if page.size:
            pages.append(render_records(page, Fields()))
        cursor, caught_up = page.next_from_seq, page.caught_up
    text = b",".join(pages)
    topic = engine.topic(name)
    holes, head = list(topic.holes.all), topic.head
    following = await runtime.future(engine.append(name, make_rows([b'"next"'])))
    return Found(text, holes, head, following.first_seq)


def check_records(records: list[Record]) -> None:
    """Every batch whole, in one piece and once; time never steps back."""
    times = [record.ts for record in records]
    assert times == sorted(times)
    seen: set[tuple[int, int]] = set()
    place = 0
    while place < len(records):
        whose, first = records[place].batch, records[place].seq
        whole = batch(*whose)
        part = records[place : place + len(whole)]
        assert [record.data for record in part] == whole, f"batch {whose} at seq {first} is torn"
        assert [record.seq for record in part] == list(range(first, first + len(whole)))
        assert whose not in seen, f"batch {whose} is there twice"
        seen.add(whose)
        place += len(whole)


def check_seqs(found: Found, records: list[Record]) -> None:
    """Every seq is a record or in a hole, and the next one is new."""
    assert sorted([*(record.seq for record in records), *found.lost()]) == list(range(1, found.head + 1))
    assert found.next_seq == found.head + 1


def check_acked(found: Found, records: list[Record], acked: list[Ack], durability: Durability) -> None:
    """The promise of the class: `fsync` loses nothing; `disk` may lose what was not synced, and says so."""
    at = {record.seq: record.data for record in records}
    absent = [
        ack
        for ack in acked
        if [at.get(seq) for seq in range(ack.first_seq, ack.last_seq + 1)] != batch(ack.writer, ack.number)
    ]
    if durability is Durability.FSYNC:
        assert not absent
        assert not found.holes
        return
    assert {hole.reason for hole in found.holes} <= {Reason.CRASH}
    lost = found.lost()
    assert all(set(range(ack.first_seq, ack.last_seq + 1)) <= lost for ack in absent)
    last_word = {ack.number // FIRST_OF_ROUND: ack.synced_seq for ack in acked}
    assert not [ack for ack in absent if ack.first_seq <= last_word[ack.number // FIRST_OF_ROUND]]
    acked_head = max((ack.last_seq for ack in acked), default=0)
    assert acked_head <= found.head <= max([acked_head, *at]) + RESERVE_MAX


@pytest.mark.parametrize(("durability", "kills"), [(Durability.FSYNC, 20), (Durability.DISK, 10)])
def test_nothing_acked_is_lost_when_the_process_is_killed(tmp_path: Path, durability: Durability, kills: int) -> None:
    """proves: G-DUR-1, G-DUR-8, G-SEQ-1, G-SEQ-2, G-SEQ-3, G-SEQ-4, G-TOMB-2, G-REC-1; inv: 79"""
    dice = random.Random(f"{durability} {SEED}")
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    acks: list[Ack] = []
    before: dict[str, Found] = {}
    for turn in range(kills):
        given = live_and_die(data_dir, durability, turn, dice)
        acks += given
        found = find(data_dir, tmp_path / "copy")
        assert {topic_of(ack.writer) for ack in acks} <= set(found)
        for name, topic in found.items():
            seen = before[name].text if name in before else b""
            assert topic.text.startswith(seen), "what a start showed is not what the next one shows"
            records = topic.records(behind=len(seen))
            check_records(records)
            check_acked(topic, records, acks_of(name, given), durability)
        before = found
    for name, topic in before.items():
        records = topic.records()
        check_records(records)
        check_seqs(topic, records)
        check_acked(topic, records, acks_of(name, acks), durability)
    assert len(acks) > 10 * kills


def acks_of(name: str, acks: list[Ack]) -> list[Ack]:
    """Those of one topic."""
    return [ack for ack in acks if topic_of(ack.writer) == name]
