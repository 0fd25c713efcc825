"""Measure the engine in process: `make bench`. One JSON line per workload; `docs/benchmarks.md` says how and why.

Every workload runs in a process of its own, on a directory of its own below `--dir`, with the settings a server has. A
record is about 110 bytes of JSON with a tag of its own. Each figure is the median of `--repeat` runs, for machines are
noisy; the bar of each is in the line, and the exit code says whether all were reached.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from unittest import mock

import uvloop

from bench.load import body
from bench.processes import cpu_seconds, resident_mib
from bench.report import Result, Workload, report
from driftq.codec.record_json import Fields, render_records
from driftq.codec.write_body import decode_write
from driftq.config import Settings
from driftq.engine.engine import Engine
from driftq.engine.read.tag_lookup import TagIndexes
from driftq.engine.read.topic_page import Page, PageQuery
from driftq.engine.state.control_frames import DeleteFrame
from driftq.engine.state.segment import SEALING, Segment
from driftq.engine.state.topic import Topic
from driftq.engine.write import deleter as delete_module
from driftq.engine.write.appender import AppendResult
from driftq.engine.write.deleter import parse_match
from driftq.engine.write.state_changes import apply_delete
from driftq.model.limits import Limits
from driftq.model.topic_config import TopicConfig
from driftq.system.clock import SystemClock
from driftq.system.disk import OsDisk
from driftq.system.machine import collect_seldom, keep_freed_memory
from driftq.system.runtime import AsyncioRuntime, Pending
from driftq.system.writer_process import OsWriterProcess, fork_writer_processes

TOPIC = "bench"
CONNECTIONS = 16
"""Writes that arrive in one loop turn, as they would from so many connections."""
QUEUE_ROOM = 2048
LIMITS = Limits()
_writer_processes: list[OsWriterProcess] = []
"""The processes that write, as a server has them."""


class Driver:
    """An engine on the real disk, and the little a caller needs around it."""

    def __init__(self, settings: Settings) -> None:
        self.runtime = AsyncioRuntime(asyncio.get_running_loop(), _writer_processes)
        self.engine = Engine(OsDisk(), SystemClock(), self.runtime, settings)

    async def create(self) -> None:
        """The topic, in the `disk` class."""
        await self.runtime.future(self.engine.put_topic(TOPIC, TopicConfig()))

    async def write(self, bodies: list[bytes]) -> None:
        """Some writes of one turn, acked."""
        writes = [self.engine.append(TOPIC, decode_write(request, LIMITS).rows) for request in bodies]
        await self._answered(writes[-1])
        shard = self.engine.shards.all[0]
        while shard.depth > QUEUE_ROOM:
            await asyncio.sleep(0.0005)

    async def _answered(self, last: Pending[AppendResult]) -> None:
        # The writes of one turn are answered in order, so that the last one stands for all.
        await self.runtime.future(last)

    async def fill(self, records: int, batch: int, *, per_turn: int, tags: bool = True) -> None:
        """Store records, made on the way."""
        turn: list[bytes] = []
        for first in range(0, records, batch):
            turn.append(body(batch, first, tags=tags))
            if len(turn) == per_turn or first + batch >= records:
                await self.write(turn)
                turn = []

    async def settle(self) -> None:
        """Until the files have caught up with the memory."""
        topic = self.engine.catalog.get(TOPIC)
        while self.engine.segment_files.busy or any(s.state is SEALING for s in topic.segments):
            await asyncio.sleep(0.005)

    def page(self, query: PageQuery) -> Page:
        """One page that is in memory."""
        found = self.engine.diff(TOPIC, query)
        assert isinstance(found, Page)
        return found


async def append(directory: str, scale: float, batch: int) -> Result:
    """Request bytes in, acks out, WAL on, `disk` class."""
    driver = Driver(Settings(data_dir=directory))
    await driver.create()
    records = int(1_000_000 * scale) // batch * batch
    requests = [body(batch, first) for first in range(0, min(records, 64_000), batch)]
    per_turn = max(1, min(CONNECTIONS, 4_000 // batch))
    done = 0
    began, cpu = time.perf_counter(), cpu_seconds(os.getpid())
    while done < records:
        turn = [requests[(done // batch + number) % len(requests)] for number in range(per_turn)]
        await driver.write(turn)
        done += per_turn * batch
    took = time.perf_counter() - began
    return Result(done / took, {"records": done, "cpu_us_per_record": (cpu_seconds(os.getpid()) - cpu) / done * 1e6})


async def diff(directory: str, scale: float, *, tags: bool) -> Result:
    """Pages of 1000 records, rendered to the JSON bytes a reader gets."""
    driver = Driver(Settings(data_dir=directory))
    await driver.create()
    await driver.fill(100_000, 1000, per_turn=4)
    fields = Fields(tags=tags)
    rounds = max(1, int(10 * scale))
    began = time.perf_counter()
    size = 0
    for _ in range(rounds):
        for cursor in range(0, 100_000, 1000):
            size += len(render_records(driver.page(PageQuery(cursor, 1000)), fields))
    took = time.perf_counter() - began
    return Result(rounds * 100_000 / took, {"bytes_per_record": size / rounds / 100_000})


async def fill_only(directory: str, records: int, batch: int) -> Result:
    """Leave a WAL behind and die without a word."""
    driver = Driver(Settings(data_dir=directory, checkpoint_wal_bytes=1 << 60, checkpoint_interval_ms=1 << 60))
    await driver.create()
    await driver.fill(records, batch, per_turn=1 if batch == 1 else 4)
    await driver.settle()
    os._exit(0)


async def recover(directory: str, scale: float, batch: int) -> Result:
    """Open a directory that has a WAL and no checkpoint."""
    records = int((2_000_000 if batch > 1 else 300_000) * scale)
    _child("fill", directory, str(records), str(batch))
    began = time.perf_counter()
    driver = Driver(Settings(data_dir=directory))
    took = time.perf_counter() - began
    recovered = driver.engine.recovered
    assert driver.engine.topic(TOPIC).count == records
    return Result(records / took, {"records": records, "frames": recovered.frames, "seconds": took})


async def delete_tag(directory: str, scale: float) -> Result:
    """Delete one tag among 10^6, in milliseconds of work, the wait for its commit aside."""
    driver = Driver(Settings(data_dir=directory))
    await driver.create()
    records = int(1_000_000 * scale)
    await driver.fill(records, 1000, per_turn=4)
    await driver.settle()
    spent = [0.0]

    def timed(topic: Topic, indexes: TagIndexes, body: DeleteFrame, op: int, ts: int) -> int:
        began = time.perf_counter()
        deleted = apply_delete(topic, indexes, body, op, ts)
        spent[0] += time.perf_counter() - began
        return deleted

    times = []
    with mock.patch.object(delete_module, "apply_delete", timed):
        for number in range(records // 20, records, records // 20):
            spent[0] = 0.0
            began = time.perf_counter()
            pending = driver.engine.delete_records(TOPIC, match=parse_match(f"order-{number}"))
            submitted = time.perf_counter() - began
            assert (await driver.runtime.future(pending)).deleted == 1
            times.append((submitted + spent[0]) * 1e3)
    return Result(statistics.median(times), {"worst_ms": max(times), "first_ms": times[0], "records": records})


async def index_memory(directory: str, scale: float, batch: int) -> Result:
    """Bytes of index per record: everything a topic keeps about its segments but their payloads."""
    driver = Driver(Settings(data_dir=directory))
    await driver.create()
    records = int((1_000_000 if batch > 1 else 200_000) * scale)
    await driver.fill(records, batch, per_turn=4 if batch > 1 else 64, tags=batch > 1)
    await driver.settle()
    topic = driver.engine.catalog.get(TOPIC)
    size = sys.getsizeof(topic.segments) + sum(_segment_bytes(segment) for segment in topic.segments)
    blocks = sum(len(segment.index) for segment in topic.segments)
    return Result(size / records, {"records": records, "blocks": blocks, "segments": len(topic.segments)})


def _segment_bytes(segment: Segment) -> int:
    parts: list[object] = [segment, segment.index, segment.index.cells, segment.dead, segment.flips, segment.pending]
    return sum(map(sys.getsizeof, parts))


async def large(directory: str, scale: float) -> Result:
    """10^7 records stored: resident memory in MiB, then a checkpoint after 1000 more, then an open from it."""
    driver = Driver(Settings(data_dir=directory))
    await driver.create()
    records = int(10_000_000 * scale)
    await driver.fill(records, 1000, per_turn=4)
    await driver.settle()
    resident = resident_mib(os.getpid())
    checkpointer = driver.engine.checkpointer
    assert await driver.runtime.future(checkpointer.run())
    await driver.fill(1000, 1000, per_turn=1)
    assert await driver.runtime.future(checkpointer.run())
    size = checkpointer.bytes_written
    assert await driver.runtime.future(driver.engine.close())
    opened = json.loads(_child("open", directory))
    assert opened["facts"]["count"] == records + 1000
    facts = {
        "records": records,
        "checkpoint_bytes": size,
        "open_seconds": opened["value"],
        "open_resident_mib": opened["facts"]["resident_mib"],
    }
    return Result(resident, facts)


async def open_only(directory: str) -> Result:
    """How long a start takes."""
    began = time.perf_counter()
    driver = Driver(Settings(data_dir=directory))
    took = time.perf_counter() - began
    return Result(took, {"count": driver.engine.topic(TOPIC).count, "resident_mib": resident_mib(os.getpid())})


RUNS: dict[str, Callable[[str, float], Awaitable[Result]]] = {
    "append_100": lambda d, s: append(d, s, 100),
    "append_1000": lambda d, s: append(d, s, 1000),
    "diff": lambda d, s: diff(d, s, tags=False),
    "diff_tags": lambda d, s: diff(d, s, tags=True),
    "recover_1000": lambda d, s: recover(d, s, 1000),
    "recover_1": lambda d, s: recover(d, s, 1),
    "delete_tag": delete_tag,
    "index_1000": lambda d, s: index_memory(d, s, 1000),
    "index_1": lambda d, s: index_memory(d, s, 1),
    "large": large,
}


def apart(name: str) -> Callable[[str, float], Result]:
    """A workload in a process of its own."""

    def run(directory: str, scale: float) -> Result:
        found = json.loads(_child("run", name, directory, str(scale)))
        return Result(found["value"], found["facts"])

    return run


WORKLOADS = {
    "append_100": Workload("records/s", apart("append_100"), 900_000),
    "append_1000": Workload("records/s", apart("append_1000"), 1_000_000),
    "diff": Workload("records/s", apart("diff"), 2_000_000),
    "diff_tags": Workload("records/s", apart("diff_tags"), 1_000_000),
    "recover_1000": Workload("records/s", apart("recover_1000"), 1_500_000, 5_000_000),
    "recover_1": Workload("records/s", apart("recover_1"), 200_000, 500_000),
    "delete_tag": Workload("ms", apart("delete_tag"), 1.0, least=False),
    "index_1000": Workload("bytes/record", apart("index_1000"), 0.2, least=False),
    "index_1": Workload("bytes/record", apart("index_1"), 5.0, least=False),
    "large": Workload(
        "MiB", apart("large"), 400, least=False, bars={"open_seconds": 2.0, "checkpoint_bytes": 1 << 20}, repeat=1
    ),
}


def _child(*arguments: str) -> str:
    command = [sys.executable, "-m", "bench.engine", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def child(arguments: list[str]) -> None:
    """The other side of `_child`."""
    keep_freed_memory()
    collect_seldom()
    _writer_processes.extend(fork_writer_processes(2))
    match arguments:
        case ["run", name, directory, scale]:
            result = uvloop.run(_result(RUNS[name](directory, float(scale))))
        case ["fill", directory, records, batch]:
            result = uvloop.run(fill_only(directory, int(records), int(batch)))
        case ["open", directory]:
            result = uvloop.run(open_only(directory))
        case _:
            raise SystemExit(f"unknown: {arguments}")
    sys.stdout.write(json.dumps({"value": result.value, "facts": result.facts}))
    sys.stdout.flush()
    os._exit(0)


async def _result(running: Awaitable[Result]) -> Result:
    return await running


if __name__ == "__main__":
    if sys.argv[1:2] in (["run"], ["fill"], ["open"]):
        child(sys.argv[1:])
    sys.exit(report(WORKLOADS, __doc__))
