"""A process made to be killed: sixteen writers on a real disk that tell of every ack, and of nothing else.

    python worker.py DATA_DIR CLASS LOOP SHARDS WRITER_PROCESSES FIRST

It says `begun` before the engine recovers and `open` behind that; then, for each ack, once it has it:
`writer number first_seq last_seq synced_seq`, all of it in one write. FIRST is the number of each writer's first batch,
WRITER_PROCESSES that of the processes which write for it.
What a batch holds follows from its writer and number, so whoever reads the log can tell a whole one from a part.
"""

import asyncio
import os
import sys
from collections.abc import Callable

from driftq.codec.write_body import make_rows
from driftq.config import Settings
from driftq.engine.engine import Engine
from driftq.model.topic_config import Durability, TopicConfig
from driftq.system.clock import SystemClock
from driftq.system.disk import OsDisk
from driftq.system.runtime import AsyncioRuntime
from driftq.system.writer_process import OsWriterProcess, fork_writer_processes

WRITERS = 16
TOPICS = 3
_ACKS_PER_CHECKPOINT = 150
_PADDING = "x" * 60


def settings(data_dir: str, shards: int = 1) -> Settings:
    """Small files, so that a short life sees rotation, sealing and checkpoints."""
    return Settings(
        data_dir=data_dir,
        wal_shards=shards,
        wal_file_bytes=256 << 10,
        segment_max_events=500,
        checkpoint_wal_bytes=512 << 10,
    )


def topic_of(writer: int) -> str:
    """Where a writer writes."""
    return f"topic-{writer % TOPICS}"


def batch(writer: int, number: int) -> list[str]:
    """The values of a writer's batch: 1 to 20 of them."""
    size = 1 + (writer * 7 + number * 11) % 20
    return [f"{writer}.{number}.{index}.{_PADDING}" for index in range(size)]


async def _write(engine: Engine, runtime: AsyncioRuntime, writer: int, config: TopicConfig, first: int) -> None:
    topic, number = topic_of(writer), first
    while True:
        rows = make_rows([b'"%b"' % value.encode() for value in batch(writer, number)])
        appended = await runtime.future(engine.append(topic, rows, config=config))
        synced = engine.synced_seq(engine.topic(topic))
        _say(b"%d %d %d %d %d" % (writer, number, appended.first_seq, appended.last_seq, synced))
        number += 1
        if writer == 0 and number % (_ACKS_PER_CHECKPOINT // WRITERS) == 0:
            engine.upkeep.checkpoint()


def _say(line: bytes) -> None:
    os.write(1, line + b"\n")


async def _work(
    data_dir: str, durability: Durability, shards: int, writer_processes: list[OsWriterProcess], first: int
) -> None:
    runtime = AsyncioRuntime(asyncio.get_running_loop(), writer_processes)
    _say(b"begun")
    engine = Engine(OsDisk(), SystemClock(), runtime, settings(data_dir, shards), pid=os.getpid())
    _say(b"open")
    config = TopicConfig(durability=durability)
    async with asyncio.TaskGroup() as tasks:
        for writer in range(WRITERS):
            tasks.create_task(_write(engine, runtime, writer, config, first))


def _loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    if name == "uvloop":
        import uvloop

        return uvloop.new_event_loop
    return asyncio.new_event_loop


def main(data_dir: str, durability: str, loop: str, shards: str, writer_processes: str, first: str) -> None:
    """Write until killed."""
    forked = fork_writer_processes(int(writer_processes))
    with asyncio.Runner(loop_factory=_loop_factory(loop)) as runner:
        runner.run(_work(data_dir, Durability(durability), int(shards), forked, int(first)))


if __name__ == "__main__":
    main(*sys.argv[1:])
