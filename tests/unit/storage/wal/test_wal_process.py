"""A shard whose writer is a process: parcels over and reports back, and what a shard does when it is gone.

The process is a thread here, with the same work at the same desk.
"""

import asyncio
import os
import socket
import threading
from pathlib import Path

from driftq.errors import DriftQError, ShardStoppedError
from driftq.storage.blocks.frame import Frame, Kind, encode_control
from driftq.storage.layout import Layout
from driftq.storage.wal.group_commit import Shard, Submission
from driftq.storage.wal.wal_file import WalFiles
from driftq.storage.wal.wal_head import FileHead, read_wal_head
from driftq.storage.wal.wal_process import write_log
from driftq.storage.wal.wal_reader import scan_of
from driftq.system.clock import SystemClock
from driftq.system.disk import OsDisk, read_file
from driftq.system.runtime import AsyncioRuntime
from driftq.system.writer_process import OsWriterProcess, ServerLine


class OnThread(OsWriterProcess):
    """A writer process that is no process."""

    @property
    def alive(self) -> bool:
        return True


class Rig:
    """A shard and its writer, on a real disk."""

    def __init__(self, directory: Path) -> None:
        self.layout = Layout(OsDisk(), str(directory))
        self.layout.prepare()
        self.answers: list[tuple[int, type[DriftQError] | None]] = []
        self._more = asyncio.Event()
        here, self._there = socket.socketpair()
        bell, self._bell = socket.socketpair()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()
        runtime = AsyncioRuntime(asyncio.get_running_loop(), [OnThread(os.getpid(), here, bell)])
        files = WalFiles(self.layout, "", 1 << 16)
        lock = OsDisk().lock(self.layout.lock_path, b"")
        self.shard = Shard(runtime, SystemClock(), files, FileHead(1, 0, 1, 0, 0), lock)
        lock.release()

    def _write(self) -> None:
        received, fds, _, _ = socket.recv_fds(self._there, 1 << 16, 1)
        server_line = ServerLine(self._there, self._bell, received)
        first = server_line.receive(None)
        assert first is not None
        write_log(server_line, bytes(first[0].body))
        for fd in fds:
            os.close(fd)
        self._there.close()
        self._bell.close()

    def submit(self, *ops: int, sync: bool, is_mark: bool = False, prompt: bool = True) -> Submission:
        frames = [encode_control(Kind.DELETE, b"x" * 900, topic_id=1, op=op, ts=0) for op in ops]
        made = Submission(frames, sync=sync, done=self._done, is_mark=is_mark, prompt=prompt)
        self.shard.submit(made)
        return made

    def _done(self, submission: Submission, error: DriftQError | None) -> None:
        self.answers.append((submission.number, None if error is None else type(error)))
        self._more.set()

    async def settled(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.answers) < count:
                self._more.clear()
                await self._more.wait()

    def break_off(self) -> None:
        """As if the process had been killed: the line ends, and nothing more is said."""
        self._there.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.shard.close()
        self._thread.join()

    def ops(self) -> list[int]:
        found = []
        for number, name in self.layout.wal_files():
            content = read_file(self.layout.disk, self.layout.wal_path(name, number))
            scan = scan_of(content, number, read_wal_head(content))
            found += [frame.seq for frame in scan if isinstance(frame, Frame) and frame.kind == Kind.DELETE]
        return found


def test_what_was_submitted_is_in_the_files_in_order_and_everybody_hears_of_it(tmp_path: Path) -> None:
    async def run() -> tuple[Rig, Submission]:
        rig = Rig(tmp_path)
        for op in range(0, 300, 3):
            rig.submit(op, op + 1, op + 2, sync=op % 2 == 0, prompt=False)
            if op % 5 == 0:
                rig.shard.flush()
                await asyncio.sleep(0)
        last = rig.submit(300, sync=True, is_mark=True)
        rig.shard.flush()
        await rig.settled(101)
        rig.close()
        return rig, last

    rig, last = asyncio.run(run())
    assert rig.ops() == list(range(301))
    assert rig.answers == [(number, None) for number in range(1, 102)]
    counters = rig.shard.counters
    assert (counters.frames, counters.bytes) == (301, 301 * len(last.frames[0]))
    assert last.end >> 32 == counters.rotations + 1
    assert last.end & 0xFFFFFFFF == rig.shard.synced_to & 0xFFFFFFFF
    assert last.sync_ns > 0
    assert (rig.shard.synced_number, rig.shard.depth) == (101, 0)


def test_what_nobody_waits_for_is_told_behind_the_sync_of_the_timer(tmp_path: Path) -> None:
    async def run() -> Rig:
        rig = Rig(tmp_path)
        rig.submit(1, sync=False, prompt=False)
        rig.shard.flush()
        await rig.settled(1)
        assert rig.shard.synced_number == 1
        rig.close()
        return rig

    assert asyncio.run(run()).answers == [(1, None)]


def test_a_writer_that_is_gone_stops_the_shard_and_everything_fails_from_then_on(tmp_path: Path) -> None:
    async def run() -> Rig:
        rig = Rig(tmp_path)
        rig.submit(1, sync=True)
        rig.shard.flush()
        await rig.settled(1)
        rig.break_off()
        rig.submit(2, sync=True)
        rig.shard.flush()
        await rig.settled(2)
        assert isinstance(rig.shard.stopped, ShardStoppedError)
        rig.submit(3, sync=True)
        rig.shard.flush()
        await rig.settled(3)
        rig.close()
        return rig

    rig = asyncio.run(run())
    assert rig.answers == [(1, None), (2, ShardStoppedError), (3, ShardStoppedError)]
    assert rig.ops()[:1] == [1]
