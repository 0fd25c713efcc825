"""The connection of a server and a writer process: whole messages in order, no waiting server, both ways to end.

The writer process's end is a thread here; `acceptance/test_writer_processes` has the processes.
"""

import asyncio
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from driftq.system.disk import OsDisk
from driftq.system.runtime import AsyncioRuntime
from driftq.system.writer_process import OsWriterProcess, ServerLine, WriterMessage

Work = Callable[[ServerLine], None]


class Line:
    """A writer process that does `work` on a thread."""

    def __init__(self, work: Work) -> None:
        here, there = socket.socketpair()
        bell, self._bell = socket.socketpair()
        self.writer_process = OsWriterProcess(os.getpid(), here, bell)
        self.heard: list[tuple[bytes, bytes]] = []
        self.ended, self._more = asyncio.Event(), asyncio.Event()
        self._there = there
        self._work = work
        self._thread = threading.Thread(target=self._live)

    def _live(self) -> None:
        with self._there, self._bell:
            received, fds, _, _ = socket.recv_fds(self._there, 1 << 16, 1)
            for fd in fds:
                os.close(fd)
            server_line = ServerLine(self._there, self._bell, received)
            first = server_line.receive(None)
            assert first is not None
            server_line.send(b"begun", first[0].head + first[0].body)
            self._work(server_line)

    def begin(self, lock_path: str) -> None:
        lock = OsDisk().lock(lock_path, b"")
        self._thread.start()
        self.writer_process.attach(asyncio.get_running_loop())
        self.writer_process.begin("module:function", b"!", lock, self._hear, self.ended.set)
        lock.release()

    def _hear(self, message: WriterMessage) -> None:
        self.heard.append((message.head, bytes(message.body)))
        self._more.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.heard) < count:
                self._more.clear()
                await self._more.wait()

    def rung(self) -> bool:
        """Has the bell rung since it was asked last?"""
        try:
            return bool(self._bell.recv(1))
        except BlockingIOError:
            return False

    def close(self) -> None:
        self.writer_process.close()
        self._thread.join()


def echo(server_line: ServerLine) -> None:
    while (messages := server_line.receive(None)) is not None:
        for message in messages:
            server_line.send(message.head, bytes(message.body))
    server_line.send(b"last", b"word")


@pytest.fixture
def lock_path(tmp_path: object) -> str:
    return f"{tmp_path}/lock"


def test_messages_come_whole_and_in_order_however_large_they_are(lock_path: str) -> None:
    dice = random.Random(1)
    sizes = [0, 1, 7, 8, 9, 1 << 20, (1 << 20) - 8, (3 << 20) + 5, *[dice.randrange(1 << 16) for _ in range(60)]]
    sent = [(b"%d" % number, dice.randbytes(size)) for number, size in enumerate(sizes)]

    async def run() -> list[tuple[bytes, bytes]]:
        line = Line(echo)
        line.begin(lock_path)
        for head, body in sent:
            cut = sorted(dice.randrange(len(body) + 1) for _ in range(2))
            line.writer_process.send(head, [body[: cut[0]], body[cut[0] : cut[1]], body[cut[1] :]])
        await line.until(1 + len(sent))
        line.close()
        return line.heard

    assert asyncio.run(run()) == [(b"begun", b"module:function!"), *sent, (b"last", b"word")]


def test_a_server_that_ends_sends_what_is_left_and_hears_the_last_word(lock_path: str) -> None:
    """Much more than the line takes at once, so that most of it is sent, and answered, in `close`."""
    bodies = [bytes([number]) * (300 << 10) for number in range(20)]

    async def run() -> list[tuple[bytes, bytes]]:
        line = Line(echo)
        line.begin(lock_path)
        for body in bodies:
            line.writer_process.send(b"", [body])
        line.close()
        return line.heard

    assert asyncio.run(run())[1:] == [*[(b"", body) for body in bodies], (b"last", b"word")]


def test_a_writer_process_that_ends_by_itself_is_told_of_once_and_sent_nothing_more(lock_path: str) -> None:
    async def run() -> None:
        line = Line(lambda _: None)
        line.begin(lock_path)
        async with asyncio.timeout(30):
            await line.ended.wait()
        line.ended.clear()
        line.writer_process.send(b"x", [bytes(1 << 20)])
        await asyncio.sleep(0)
        line.close()
        assert not line.ended.is_set()

    asyncio.run(run())


@contextmanager
def server_line() -> Iterator[tuple[socket.socket, socket.socket, ServerLine]]:
    """The server's ends of line and bell, and what is at the other ends."""
    here, there = socket.socketpair()
    bell, heard = socket.socketpair()
    with here, there, bell, heard:
        yield here, bell, ServerLine(there, heard, b"")


def test_half_a_message_of_a_server_that_died_is_none() -> None:
    whole = b"\x01\0\0\0\x02\0\0\0hbb"
    with server_line() as (here, _, there):
        here.sendall(whole + whole[:-1])
        here.close()
        (message,) = there.receive(None) or []
        assert (message.head, bytes(message.body)) == (b"h", b"bb")
        assert there.receive(None) is None


def test_who_waits_for_a_message_waits_as_long_as_he_said() -> None:
    with server_line() as (_, _, there):
        assert there.receive(0.001) == []


def test_nobody_minds_that_a_server_is_gone() -> None:
    with server_line() as (here, _, there):
        here.close()
        there.send(b"is anybody there?", bytes(1 << 20))
        assert there.receive(None) is None


def test_a_writer_process_rests_until_the_bell_rings_and_once_for_each_ring() -> None:
    with server_line() as (_, bell, there):
        began = time.monotonic()
        bell.send(b"!")
        there.rest(30)
        assert time.monotonic() - began < 10
        there.rest(0.001)
        assert time.monotonic() - began >= 0.001


def test_only_what_is_urgent_behind_what_is_not_rings_the_bell(lock_path: str) -> None:
    async def run() -> list[bool]:
        line = Line(echo)
        line.begin(lock_path)
        rang = []
        for number, urgent in enumerate([True, True, False, False, True, True, False, True]):
            line.writer_process.send(b"", [b"x"], urgent=urgent)
            await line.until(2 + number)
            rang.append(line.rung())
        line.close()
        return rang

    assert asyncio.run(run()) == [False, False, False, False, True, False, False, True]


def test_a_writer_process_that_dies_while_something_is_unsent_does_not_keep_a_server_from_ending(
    lock_path: str,
) -> None:
    async def run() -> Line:
        line = Line(lambda _: None)
        line.begin(lock_path)
        for _ in range(20):
            line.writer_process.send(b"x", [bytes(1 << 20)])
        line.close()
        return line

    assert asyncio.run(run()).heard[:1] in ([], [(b"begun", b"module:function!")])


def test_a_writer_process_that_has_died_before_it_was_needed_is_none() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL)
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    lines = [*socket.socketpair(), *socket.socketpair()]
    loop = asyncio.new_event_loop()
    assert AsyncioRuntime(loop, [OsWriterProcess(ended.pid, lines[0], lines[2])]).writer_process() is None
    loop.close()
    ended.wait()
    for line in lines:
        line.close()
