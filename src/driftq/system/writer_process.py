"""Writer processes: they write files for the server, each with an interpreter of its own.

A thread that writes needs the interpreter's lock before and after every call, and a busy loop holds it nearly always:
the thread starves, and the loop loses time with waking it. A writer process shares nothing with the server and
exchanges messages with it over a socket, called the line.

    forked → begun (has its task, and the lock of the directory) → working → closed by the server → ended

Invariants
- A writer process is forked before the server has a loop or a thread, and does nothing before `begin`.
- Messages arrive complete and in order, in both directions. A message that a dead server had sent in part is ignored.
- The process holds the lock of the data directory as long as it lives: no other server opens the directory while it may
  still write.
- It ends when the server's end of the line is closed, by `close` or because the server died, after it has received all
  messages sent before. It ignores signals to the whole process group: the server handles them.
- If it ends by itself, or by `kill`, the server's `gone` callback is called once.
- If it does not answer, the server decides (`engine/writer_watch`): `kill` ends it; `leave` stops waiting for it and
  lets it finish what it was sent, if it can.

Waking a process costs as much as half a request. So a writer process may pause (`ServerLine.rest`) if no caller waits
for the last messages. An urgent message then wakes it with a byte on a second socket, called the bell.
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

# long: the two ends of one connection, which have to agree

_LENGTHS = Struct("<II")
"""Lengths of a message's head and of its body."""
_BUFFER_BYTES = 1 << 20
_READ_BYTES = 1 << 18
_SEND_BUFFER_BYTES = 1 << 20
_IOV_MAX = 1024
_BELL_BYTES = 4096
_SELECT_MAX = 1024
"""`select` cannot wait for handles from this number on."""
_NAME_MAX = 15
"""Linux shows this many characters of a process name."""

_log = logging.getLogger(__name__)


class WriterMessage(NamedTuple):
    """One message between the server and a writer process."""

    head: bytes
    body: memoryview


class _Messages:
    """The received bytes of one direction, split into messages."""

    def __init__(self, received: bytes = b"") -> None:
        self._buffer = bytearray(_BUFFER_BYTES)
        self._buffer[: len(received)] = received
        self._start, self._end = 0, len(received)

    def read(self, line: socket.socket) -> int:
        """Read what has arrived; 0 means the end. Bodies that were returned before become invalid."""
        kept = self._end - self._start
        size = _BUFFER_BYTES
        if kept >= _LENGTHS.size:
            size = max(size, _LENGTHS.size + sum(_LENGTHS.unpack_from(self._buffer, self._start)))
        if self._start or size != len(self._buffer):
            # Only if needed: a message larger than one read would be moved with every read.
            buffer = self._buffer if size == len(self._buffer) else bytearray(size)
            buffer[:kept] = self._buffer[self._start : self._end]
            self._buffer = buffer
            self._start, self._end = 0, kept
        with memoryview(self._buffer) as view:
            got = line.recv_into(view[kept:])
        self._end += got
        return got

    def spent(self) -> bool:
        """Free the buffer of a large message that has been used. Returns whether there was one."""
        large = len(self._buffer) > _BUFFER_BYTES and self._start == self._end
        if large:
            self._buffer, self._start, self._end = bytearray(_BUFFER_BYTES), 0, 0
        return large

    def whole(self) -> list[WriterMessage]:
        """Return the messages that have arrived completely."""
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
    """The connection from a writer process back to the server."""

    def send(self, head: bytes, body: bytes = b"") -> None:
        """Send a message to the server."""
        ...


class ServerLine:
    """The writer process's end of the line. Its calls block."""

    def __init__(self, line: socket.socket, bell: socket.socket, received: bytes) -> None:
        self._line = line
        self._bell = bell
        bell.setblocking(False)
        self._poll = select.poll()
        self._poll.register(line, select.POLLIN)
        self._messages = _Messages(received)
        self._sending = threading.Lock()

    def receive(self, wait_s: float | None) -> list[WriterMessage] | None:
        """Return all messages that have arrived: at least one, [] after `wait_s` seconds, None if the line is closed.

        Their bodies are valid until the next call.
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
        """Pause for up to `rest_s` seconds, so that messages collect, or until an urgent one arrives."""
        if self._bell.fileno() < _SELECT_MAX:
            select.select([self._bell], [], [], rest_s)  # unlike `poll`, it can wait for less than a millisecond
        with suppress(OSError):
            self._bell.recv(_BELL_BYTES)

    def send(self, head: bytes, body: bytes = b"") -> None:
        """Send a message to the server. A dead server is ignored."""
        with self._sending, suppress(OSError):
            self._line.sendall(_LENGTHS.pack(len(head), len(body)) + head + body)


class WriterProcess(Protocol):
    """The server's end of the line."""

    sent: Callable[[], None]
    """Called on the loop when the socket has taken messages that it did not take at once."""

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        ...

    @property
    def has_unsent(self) -> bool:
        """Whether some sent bytes are not in the socket yet."""
        ...

    def begin(
        self, work: str, head: bytes, lock: Lock, hear: Callable[[WriterMessage], None], gone: Callable[[], None]
    ) -> None:
        """Make the process call `module:function` with its `ServerLine` and `head`. `hear` must not keep a body."""
        ...

    def send(self, head: bytes, buffers: Sequence[bytes], *, urgent: bool = True) -> None:
        """Send a message whose body is these buffers back to back. Never waits."""
        ...

    def kill(self) -> None:
        """Kill the process. `gone` is called when it has ended, which takes until its system calls return."""
        ...

    def leave(self) -> None:
        """Close the line without waiting. A later `close` does not wait either."""
        ...

    def close(self) -> None:
        """Send what is left, receive the last messages, and wait until the process has ended."""
        ...


class OsWriterProcess:
    """The server's end of a forked writer process."""

    def __init__(self, pid: int, line: socket.socket, bell: socket.socket) -> None:
        self.pid = pid
        self._line = line
        self._bell = bell
        bell.setblocking(False)
        self._may_rest = False
        """Whether no caller waited for the previous message."""
        self._messages = _Messages()
        self._unsent: deque[memoryview] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hear: Callable[[WriterMessage], None] = lambda _: None
        self._gone: Callable[[], None] = lambda: None
        self._over = self._left = False
        self.sent: Callable[[], None] = lambda: None

    @property
    def has_unsent(self) -> bool:
        """Whether the kernel has not taken all sent bytes. The process gets those that it has taken."""
        return bool(self._unsent)

    def begin(
        self, work: str, head: bytes, lock: Lock, hear: Callable[[WriterMessage], None], gone: Callable[[], None]
    ) -> None:
        """Send the process its task and the lock."""
        assert self._loop is not None, "a runtime attaches the loop first"
        self._hear, self._gone = hear, gone
        name = work.encode()
        _log.info("writer process started", extra=facts(process=_process_name(work), pid=self.pid))
        socket.send_fds(self._line, [_LENGTHS.pack(len(name), len(head)) + name + head], [lock.fileno()])
        self._line.setblocking(False)
        self._loop.add_reader(self._line, self._readable)

    @property
    def alive(self) -> bool:
        """Whether the process still runs. One without a task ends without a message."""
        with suppress(ChildProcessError):
            return os.waitpid(self.pid, os.WNOHANG)[0] == 0
        return False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the loop that receives its messages."""
        self._loop = loop

    def send(self, head: bytes, buffers: Sequence[bytes], *, urgent: bool = True) -> None:
        """Send a message; keep what the socket does not take at once until it does."""
        if self._over:
            return
        self._post(head, buffers)
        if urgent and self._may_rest:
            with suppress(OSError):  # the bell's buffer is full, or the process has ended
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
            return 0  # the process has ended; the end of the line reports it

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
        """Receive what has arrived. Returns False if nothing more will arrive."""
        try:
            got = self._messages.read(self._line)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        for message in self._messages.whole():
            try:
                self._hear(message)
            except Exception as bug:  # noqa: BLE001 - the loop raises it later; the next messages must be handled
                assert self._loop is not None
                self._loop.call_soon(_raise, bug)
        self._messages.spent()
        return got > 0

    def _end(self) -> None:
        """Remove the line from the loop."""
        self._over = True
        if self._loop is not None and self._line.fileno() >= 0:
            self._loop.remove_reader(self._line)
            self._loop.remove_writer(self._line)
        self._unsent.clear()

    def kill(self) -> None:
        """Send SIGKILL. The process is not reaped before `close`, so its id cannot be reused meanwhile."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def leave(self) -> None:
        """Close the line. The process gets everything that was sent, then the end."""
        self._left = True
        self._end()
        self._line.close()
        self._bell.close()

    def close(self) -> None:
        """Block until the process has ended."""
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
                    unsent.clear()  # the process has ended; the end of the line reports it
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


def fork_writer_processes(count: int) -> list[OsWriterProcess]:
    """Fork `count` processes that wait for a task. Call it before there is a loop or a thread.

    If the system allows no more processes, there are fewer, and threads do the rest of the work.
    """
    writer_processes: list[OsWriterProcess] = []
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
        writer_processes.append(OsWriterProcess(pid, here, bell))
    return writer_processes


def _live(line: socket.socket, bell: socket.socket) -> None:
    """Run a writer process. Does not return."""
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        _work(line, bell)
        code = 0
    except BaseException:  # noqa: BLE001 - after any error this process ends, and the server notices
        _log.critical("a writer process failed", exc_info=True, extra=facts(pid=os.getpid()))
    finally:
        sys.stderr.flush()
        os._exit(code)


def _process_name(work: str) -> str:
    """Return the process name for this task, as the documentation has it."""
    return f"driftq-{work.partition(':')[2].replace('_', '-')}"


def _work(line: socket.socket, bell: socket.socket) -> None:
    received, _lock, _, _ = socket.recv_fds(line, _READ_BYTES, 1)
    server_line = ServerLine(line, bell, received)
    first = server_line.receive(None)
    if not first:
        return  # the server ended before it gave a task
    work, head = first[0].head.decode(), bytes(first[0].body)
    module, _, function = work.partition(":")
    with suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write(_process_name(work)[:_NAME_MAX])
    getattr(import_module(module), function)(server_line, head)
