"""Processes that write for the server, each with an interpreter of its own.

A thread that writes has to have the interpreter's lock before and behind every call, and a busy loop has it nearly
always: the thread starves, and the loop pays for waking it in vain. A scribe shares nothing but messages.

    forked → begun (what it is to do, and the lock of the directory) → at work → left by the server → gone

Invariants
- A scribe is forked before the server has a loop or a thread, and does nothing before it is told what.
- Messages come whole and in their order, either way. What a server that died had sent in part is nothing.
- It has the lock of the data directory for as long as it lives: nobody opens the directory while it may still write.
- It ends when the server's end of the line is closed, by `close` or because the server is gone, and behind all that
  it was told before. Signals to the whole group are the server's to answer.
- One that ends by itself is told of, once (`gone`), also where `kill` ended it.
- One that does not answer is the server's to judge (`engine/writer_watch`): `kill` ends it, `leave` expects nothing
  more of it and lets it finish what it was sent, if it ever can.

To wake a process costs as much as half a request. So a scribe may rest where nobody waits for what it was sent last
(`Desk.rest`); an urgent message rings a bell then, which nothing else does.
"""

import asyncio
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from struct import Struct
from typing import NamedTuple, Protocol

from driftq.system.lock import Lock
from driftq.system.log_facts import facts

# long: the two ends of one line, which have to agree

_LENGTHS = Struct("<II")
"""Of a message: its head, and its body."""
_BUFFER_BYTES = 1 << 20
_READ_BYTES = 1 << 18
_SEND_BUFFER_BYTES = 1 << 20
_IOV_MAX = 1024
_BELL_BYTES = 4096
_SELECT_MAX = 1024
"""Handles from here on are none that `select` can take."""
_NAME_MAX = 15
"""What Linux shows of the name of a process."""

_log = logging.getLogger(__name__)


class WriterMessage(NamedTuple):
    """What goes over the line."""

    head: bytes
    body: memoryview


class _Messages:
    """Bytes of one direction, cut into messages."""

    def __init__(self, received: bytes = b"") -> None:
        self._buffer = bytearray(_BUFFER_BYTES)
        self._buffer[: len(received)] = received
        self._start, self._end = 0, len(received)

    def read(self, line: socket.socket) -> int:
        """Take in what has come; 0 at the end. Bodies that were handed out before are no more."""
        kept = self._end - self._start
        size = _BUFFER_BYTES
        if kept >= _LENGTHS.size:
            size = max(size, _LENGTHS.size + sum(_LENGTHS.unpack_from(self._buffer, self._start)))
        if self._start or size != len(self._buffer):
            # Only then: a message that is larger than one read would be moved with every one of them.
            buffer = self._buffer if size == len(self._buffer) else bytearray(size)
            buffer[:kept] = self._buffer[self._start : self._end]
            self._buffer = buffer
            self._start, self._end = 0, kept
        with memoryview(self._buffer) as view:
            got = line.recv_into(view[kept:])
        self._end += got
        return got

    def spent(self) -> bool:
        """Let go of the room for a large message that has been used. Was there any?"""
        large = len(self._buffer) > _BUFFER_BYTES and self._start == self._end
        if large:
            self._buffer, self._start, self._end = bytearray(_BUFFER_BYTES), 0, 0
        return large

    def whole(self) -> list[WriterMessage]:
        """Those that are there from the first to the last byte."""
        found: list[WriterMessage] = []
        view = memoryview(self._buffer)
        while self._end - self._start >= _LENGTHS.size:
            head, body = _LENGTHS.unpack_from(view, self._start)
            middle = self._start + _LENGTHS.size + head
            if middle + body > self._end:
                break
            found.append(WriterMessage(bytes(view[middle - head : middle]), view[middle : middle + body]))
            self._start = middle + body
        return found


class Answers(Protocol):
    """The way back to the server."""

    def send(self, head: bytes, body: bytes = b"") -> None:
        """Tell it something."""
        ...


class Desk:
    """The scribe's end of the line. Blocking."""

    def __init__(self, line: socket.socket, bell: socket.socket, received: bytes) -> None:
        self._line = line
        self._bell = bell
        bell.setblocking(False)
        self._poll = select.poll()
        self._poll.register(line, select.POLLIN)
        self._messages = _Messages(received)
        self._sending = threading.Lock()

    def receive(self, wait_s: float | None) -> list[WriterMessage] | None:
        """All that has come: at least one message, or none when time is up; None when there will be no more.

        Their bodies can be used until the next call.
        """
        self._messages.spent()
        while not (found := self._messages.whole()):
            if not self._poll.poll(None if wait_s is None else wait_s * 1000):
                return []
            try:
                if not self._messages.read(self._line):
                    return None
            except ConnectionError:
                return None
        return found

    def rest(self, rest_s: float) -> None:
        """Let messages collect, until one is urgent."""
        if self._bell.fileno() < _SELECT_MAX:
            select.select([self._bell], [], [], rest_s)  # which knows less than a millisecond, as `poll` does not
        with suppress(OSError):
            self._bell.recv(_BELL_BYTES)

    def send(self, head: bytes, body: bytes = b"") -> None:
        """Tell the server something; one that is gone hears nothing."""
        with self._sending, suppress(OSError):
            self._line.sendall(_LENGTHS.pack(len(head), len(body)) + head + body)


class Scribe(Protocol):
    """The server's end of the line."""

    sent: Callable[[], None]
    """Is called, on the loop, when the line has taken what it did not take at once."""

    @property
    def pid(self) -> int:
        """The id of the process."""
        ...

    @property
    def has_unsent(self) -> bool:
        """Whether the line has not taken all of what was sent."""
        ...

    def begin(
        self, work: str, head: bytes, lock: Lock, hear: Callable[[WriterMessage], None], gone: Callable[[], None]
    ) -> None:
        """Have it do `module:function`, called with its desk and `head`. Bodies are good within `hear` alone."""
        ...

    def send(self, head: bytes, buffers: Sequence[bytes], *, urgent: bool = True) -> None:
        """A message whose body are these buffers, one behind the other. Never waits."""
        ...

    def kill(self) -> None:
        """End it at once. `gone` is called when it has ended, which takes until its system calls return."""
        ...

    def leave(self) -> None:
        """Close the line and wait for nothing. A later `close` does not wait either."""
        ...

    def close(self) -> None:
        """Send what is left, hear what it has to say, and wait until it is gone."""
        ...


class ScribeProcess:
    """A process."""

    def __init__(self, pid: int, line: socket.socket, bell: socket.socket) -> None:
        self.pid = pid
        self._line = line
        self._bell = bell
        bell.setblocking(False)
        self._may_rest = False
        """Did nobody wait for the message before this one?"""
        self._messages = _Messages()
        self._unsent: deque[memoryview] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hear: Callable[[WriterMessage], None] = lambda _: None
        self._gone: Callable[[], None] = lambda: None
        self._over = self._left = False
        self.sent: Callable[[], None] = lambda: None

    @property
    def has_unsent(self) -> bool:
        """Whether the kernel has not taken all of what was sent. What it has taken reaches the process."""
        return bool(self._unsent)

    def begin(
        self, work: str, head: bytes, lock: Lock, hear: Callable[[WriterMessage], None], gone: Callable[[], None]
    ) -> None:
        """Tell it what to do, and hand it the lock."""
        assert self._loop is not None, "a scribe is to be had from a runtime"
        self._hear, self._gone = hear, gone
        name = work.encode()
        _log.info("writer process started", extra=facts(process=_process_name(work), pid=self.pid))
        socket.send_fds(self._line, [_LENGTHS.pack(len(name), len(head)) + name + head], [lock.fileno()])
        self._line.setblocking(False)
        self._loop.add_reader(self._line, self._readable)

    @property
    def alive(self) -> bool:
        """Does it still run? One that was never told what to do has nothing to say when it ends."""
        with suppress(ChildProcessError):
            return os.waitpid(self.pid, os.WNOHANG)[0] == 0
        return False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop that it is heard on."""
        self._loop = loop

    def send(self, head: bytes, buffers: Sequence[bytes], *, urgent: bool = True) -> None:
        """What the line does not take at once is kept until it does."""
        if self._over:
            return
        self._post(head, buffers)
        if urgent and self._may_rest:
            with suppress(OSError):  # the bell is full of rings, or nobody is there to hear it
                self._bell.send(b"!")
        self._may_rest = not urgent

    def _post(self, head: bytes, buffers: Sequence[bytes]) -> None:
        parts = [_LENGTHS.pack(len(head), sum(map(len, buffers))) + head, *buffers]
        if not self._unsent:
            sent = self._sent(parts)
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if not parts:
                return
            assert self._loop is not None
            self._loop.add_writer(self._line, self._writable)
            self._unsent.append(memoryview(parts.pop(0))[sent:])
        self._unsent.extend(map(memoryview, parts))

    def _sent(self, parts: Sequence[bytes | memoryview]) -> int:
        try:
            return self._line.sendmsg(parts[:_IOV_MAX])
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            return 0  # it is gone, and its end of the line tells so

    def _writable(self) -> None:
        unsent = self._unsent
        sent = self._sent([unsent[place] for place in range(min(len(unsent), _IOV_MAX))])
        while unsent and sent >= len(unsent[0]):
            sent -= len(unsent.popleft())
        if sent:
            unsent[0] = unsent[0][sent:]
        if not unsent and self._loop is not None:
            self._loop.remove_writer(self._line)
            self.sent()

    def _readable(self) -> None:
        if not self._take_in():
            self._end()
            self._gone()

    def _take_in(self) -> bool:
        """Hear what has come; False when nothing more will."""
        try:
            got = self._messages.read(self._line)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        for message in self._messages.whole():
            try:
                self._hear(message)
            except Exception as bug:  # noqa: BLE001 - the loop is told of it, and of the next message whoever waits for it
                assert self._loop is not None
                self._loop.call_soon(_raise, bug)
        self._messages.spent()
        return got > 0

    def _end(self) -> None:
        """Take the line off the loop."""
        self._over = True
        if self._loop is not None and self._line.fileno() >= 0:
            self._loop.remove_reader(self._line)
            self._loop.remove_writer(self._line)
        self._unsent.clear()

    def kill(self) -> None:
        """Send SIGKILL. The process is not waited for before `close`, so its id is not another's meanwhile."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def leave(self) -> None:
        """Close the line: the process gets what is in it, and then the end."""
        self._left = True
        self._end()
        self._line.close()
        self._bell.close()

    def close(self) -> None:
        """Blocks until the process is gone."""
        if self._left:
            return
        unsent = list(self._unsent)
        if not self._over:
            self._end()
            self._finish(unsent)
        self._line.close()
        self._bell.close()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _finish(self, unsent: list[memoryview]) -> None:
        self._line.setblocking(True)
        ready = select.poll()
        ready.register(self._line, select.POLLIN | (select.POLLOUT if unsent else 0))
        if not unsent:
            self._leave()
        while True:
            ((_, events),) = ready.poll()
            if unsent and events & select.POLLOUT:
                try:
                    sent = self._line.send(unsent[0], socket.MSG_DONTWAIT)
                    unsent[0] = unsent[0][sent:]
                    if not unsent[0]:
                        unsent.pop(0)
                except BlockingIOError:
                    continue
                except OSError:
                    unsent.clear()  # it is gone, and its end of the line tells so
                if not unsent:
                    ready.modify(self._line, select.POLLIN)
                    self._leave()
            if events & (select.POLLIN | select.POLLHUP | select.POLLERR) and not self._take_in():
                return

    def _leave(self) -> None:
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)


def _raise(error: Exception) -> None:
    raise error


def fork_scribes(count: int) -> list[ScribeProcess]:
    """So many processes that wait to be told what to do. To be called before there is a loop or a thread.

    Where the system allows no more processes there are fewer, and threads do the rest.
    """
    scribes: list[ScribeProcess] = []
    ours: list[socket.socket] = []
    for _ in range(count):
        here, there = socket.socketpair()
        bell, heard = socket.socketpair()
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError:
            for line in (here, there, bell, heard):
                line.close()
            break
        if pid == 0:
            for line in (here, bell, *ours):
                line.close()
            _live(there, heard)
        there.close()
        heard.close()
        ours += [here, bell]
        scribes.append(ScribeProcess(pid, here, bell))
    return scribes


def _live(line: socket.socket, bell: socket.socket) -> None:
    """The life of a scribe; does not return."""
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        _work(line, bell)
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, this process ends here, and its server hears that it did
        _log.critical("a writer process failed", exc_info=True, extra=facts(pid=os.getpid()))
    finally:
        sys.stderr.flush()
        os._exit(code)


def _process_name(work: str) -> str:
    """Return the name of a process with this work, as the documentation has it."""
    return f"driftq-{work.partition(':')[2].replace('_', '-')}"


def _work(line: socket.socket, bell: socket.socket) -> None:
    received, _lock, _, _ = socket.recv_fds(line, _READ_BYTES, 1)
    desk = Desk(line, bell, received)
    first = desk.receive(None)
    if not first:
        return  # the server has ended before it began
    work, head = first[0].head.decode(), bytes(first[0].body)
    module, _, function = work.partition(":")
    with suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write(_process_name(work)[:_NAME_MAX])
    getattr(import_module(module), function)(desk, head)
