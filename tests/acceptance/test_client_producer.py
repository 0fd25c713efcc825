"""Producers on a real server: order, results, failures that are always seen, room, and a server that dies."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from driftq.client import (
    AsyncClient,
    BadRequestError,
    Client,
    ClosedError,
    NotFoundError,
    ProtocolError,
    Record,
    StoredMessage,
)
from driftq.client.transport.new_records import JsonLinesReader
from driftq.client.transport.retry import Retries
from tests.acceptance.restarting import PATIENT, Restarting, restarting
from tests.acceptance.tap import tapped
from tests.support.hostile_server import heard, hostile, reply
from tests.support.process import PATIENCE_S, ServerProcess, environment


def out_of(client: Client, topic: str) -> list[Record]:
    return [item for item in client.topic(topic).read() if isinstance(item, Record)]


def data_of(client: Client, topic: str) -> list[object]:
    return [item.data for item in out_of(client, topic)]


def test_appends_keep_their_order_and_know_their_seqs(client: Client) -> None:
    topic = client.topic("producer")
    with topic.producer(max_batch=7) as out:
        handles = [out.append(n, tag="even" if n % 2 == 0 else None, meta={"n": str(n)}) for n in range(100)]
    assert [handle.result(0) for handle in handles] == list(range(1, 101))
    records = [item for item in topic.read() if isinstance(item, Record)]
    assert [record.data for record in records] == list(range(100))
    assert records[4].meta == {"n": "4"}
    with pytest.raises(ClosedError):
        out.append(1)


def test_lines_are_a_write_of_their_own_between_the_appends_around_them(client: Client) -> None:
    topic = client.topic("producer-lines")
    with topic.producer(linger_ms=10_000) as out:
        before = out.append("before")
        lines = out.append_lines(b'1\n{"n": 2}\n\n"three"', tag="line", node="here")
        after = [out.append(n) for n in ("after", "last")]
        checked = JsonLinesReader(b"4\n5\n")
        more = out.append_lines(checked)
        assert list(lines.result(30)) == [2, 3, 4]
        with pytest.raises(ValueError, match="line 2 is"):
            out.append_lines(b"1\n{bad\n")
    assert (before.result(0), [handle.result(0) for handle in after], list(more.result(0))) == (1, [5, 6], [7, 8])
    assert data_of(client, "producer-lines") == ["before", 1, {"n": 2}, "three", "after", "last", 4, 5]
    assert [(item.tag, item.node) for item in out_of(client, "producer-lines")][1:4] == [("line", "here")] * 3


def test_lines_that_fail_fail_their_handle_and_no_other(client: Client) -> None:
    with client.topic("producer-no-topic").producer() as out:
        refused = out.append_lines(b"1\n2\n", create=False)
        with pytest.raises(NotFoundError):
            refused.result(30)
        assert out.append(3).result(30) == 1
    assert data_of(client, "producer-no-topic") == [3]


def test_the_asynchronous_producer_takes_lines(url: str) -> None:
    async def use() -> tuple[list[int], int]:
        async with AsyncClient(url) as client, client.topic("producer-lines-async").producer() as out:
            lines = await out.append_lines(b"1\n2\n", tag="x")
            last = await out.append(3)
            return list(await lines), await last

    assert asyncio.run(use()) == ([1, 2], 3)


def test_a_lone_append_waits_for_no_other(client: Client) -> None:
    with client.topic("producer-lone").producer(linger_ms=1, max_batch=10_000) as out:
        handle = out.append("alone")
        assert handle.result(10) == 1
        assert handle.done()


def test_many_threads_share_a_producer(client: Client) -> None:
    with client.topic("producer-threads").producer() as out:

        def work(number: int) -> None:
            for n in range(200):
                out.append([number, n])

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        out.flush()
        found = [(item.data[0], item.data[1]) for item in out_of(client, "producer-threads")]
    assert sorted(found) == [(number, n) for number in range(4) for n in range(200)]
    assert all([n for other, n in found if other == number] == list(range(200)) for number in range(4))


def test_a_failure_that_no_handle_has_shown_is_raised_by_flush_or_close(client: Client) -> None:
    topic = client.topic("producer-refused")
    out = topic.producer()
    out.append("fits")
    out.flush()
    out.append("x", tag="t" * 300)
    with pytest.raises(BadRequestError, match="tag"):
        out.flush()
    out.append("y", tag="t" * 300)
    with pytest.raises(BadRequestError, match="tag"):
        out.close()
    assert data_of(client, "producer-refused") == ["fits"]


def test_all_failures_that_no_handle_has_shown_are_reported(client: Client) -> None:
    out = client.topic("producer-two").producer(linger_ms=0, max_batch=1)
    out.append("a", tag="t" * 300)
    out.append("fits")
    out.append("b", node="n" * 5000)
    shown = out.append("c", tag="t" * 400)
    with pytest.raises(BadRequestError):
        shown.result(30)
    with pytest.raises(BadRequestError, match="tag is 300 bytes") as caught:
        out.close()
    (note,) = caught.value.__notes__
    assert "BadRequestError" in note
    assert "node is 5000 bytes" in note
    out.close()
    assert data_of(client, "producer-two") == ["fits"]


def test_a_failure_that_a_handle_has_shown_is_not_raised_again(client: Client) -> None:
    with client.topic("producer-shown").producer() as out:
        handle = out.append("x", tag="t" * 300)
        with pytest.raises(BadRequestError, match="tag"):
            handle.result(10)
        assert out.append("next").result(10) == 1


def test_an_error_of_the_caller_is_not_replaced_by_one_of_the_producer(client: Client) -> None:
    with pytest.raises(ZeroDivisionError), client.topic("producer-raises").producer() as out:  # noqa: PT012
        out.append("kept")
        out.append("x", tag="t" * 300)
        raise ZeroDivisionError


def test_what_waits_is_bounded_and_an_append_waits_for_room() -> None:
    asked, go = threading.Event(), threading.Event()
    written = b'{"first_seq":1,"last_seq":1,"head_seq":1,"count":1}'

    def play(connection: object, _: int) -> None:
        while True:
            heard(connection)  # type: ignore[arg-type]
            asked.set()
            go.wait()
            connection.sendall(reply(written))  # type: ignore[attr-defined]

    with hostile(play) as url, Client(url, timeout=5, retries=0) as client:
        out = client.topic("t").producer(max_bytes=100, linger_ms=0)
        out.append("x" * 60)
        asked.wait()
        blocked = threading.Thread(target=out.append, args=("y" * 60,), daemon=True)
        blocked.start()
        blocked.join(0.2)
        assert blocked.is_alive()
        go.set()
        blocked.join(5)
        assert not blocked.is_alive()
        with pytest.raises(ProtocolError):
            out.close()


KILLS, PER_KILL = 3, 1000


def write_while_killed(host: Restarting) -> tuple[list[int], list[int | None]]:
    """Kill the server under a producer of each kind; return the seqs and the offsets that the handles have."""
    with Client(f"http://{host.address}", timeout=60, retries=PATIENT) as client:
        with client.topic("records").producer(max_batch=50) as out, client.broker.producer("b", max_batch=50) as sends:
            records, messages = [], []
            for number in range(KILLS * PER_KILL):
                records.append(out.append(number))
                messages.append(sends.produce(str(number)))
                if number % PER_KILL == PER_KILL - 1:
                    records[-PER_KILL // 2].result(60)  # so that half of them are on their way
                    host.again(signal.SIGKILL)
        return [handle.result(0) for handle in records], [handle.result(0).offset for handle in messages]


async def write_while_killed_async(host: Restarting) -> tuple[list[int], list[int | None]]:
    """The same with the asyncio producers."""
    async with AsyncClient(f"http://{host.address}", timeout=60, retries=PATIENT) as client:
        async with (
            client.topic("records").producer(max_batch=50) as out,
            client.broker.producer("b", max_batch=50) as sends,
        ):
            records, messages = [], []
            for number in range(KILLS * PER_KILL):
                records.append(await out.append(number))
                messages.append(await sends.produce(str(number)))
                if number % PER_KILL == PER_KILL - 1:
                    await records[-PER_KILL // 2]
                    await asyncio.to_thread(host.again, signal.SIGKILL)
        return [await handle for handle in records], [(await handle).offset for handle in messages]


@pytest.mark.parametrize("is_async", [False, True])
def test_no_producer_doubles_loses_or_reorders_anything_when_the_server_dies(tmp_path: Path, is_async: bool) -> None:
    """Every handle has the place at which its record or message is stored."""
    with restarting(tmp_path) as host:
        with Client(f"http://{host.address}") as client:
            client.topic("records").create(durability="fsync")
            client.broker.create_topic("b")
        seqs, offsets = asyncio.run(write_while_killed_async(host)) if is_async else write_while_killed(host)
        with Client(f"http://{host.address}") as client:
            stored = [one for one in client.broker.messages("b") if isinstance(one, StoredMessage)]
            assert data_of(client, "records") == list(range(KILLS * PER_KILL))
        assert seqs == list(range(1, KILLS * PER_KILL + 1))
        assert [int(one.message.value) for one in stored] == list(range(KILLS * PER_KILL))
        assert offsets == list(range(KILLS * PER_KILL))


def test_a_server_that_is_gone_fails_every_handle() -> None:
    with Client("http://127.0.0.1:1", retries=Retries(count=0)) as client:
        out = client.topic("t").producer()
        handle = out.append(1)
        with pytest.raises(Exception, match="cannot be reached"):
            handle.result(10)
        out.close()


def test_messages_are_produced_in_batches(client: Client) -> None:
    client.broker.create_topic("producer")
    with client.broker.producer("producer") as out:
        handles = [out.produce({"n": n}, key=str(n)) for n in range(1500)]
    assert [handle.result(0).offset for handle in handles] == list(range(1500))
    stored = [one for one in client.broker.messages("producer") if isinstance(one, StoredMessage)]
    assert [one.message.value for one in stored[:3]] == ['{"n":0}', '{"n":1}', '{"n":2}']
    assert len({one.message.envelope.idempotency_key for one in stored if one.message.envelope}) == 1500


def test_messages_know_their_places_after_a_lost_answer(client: Client, cli_server: ServerProcess) -> None:
    client.broker.create_topic("producer-lost", 3)
    with tapped(cli_server.address) as tap:
        tap.lose_answer("/v1/produce/batch")
        with Client(tap.url) as lossy, lossy.broker.producer("producer-lost") as out:
            handles = [out.produce(str(n), key=str(n)) for n in range(5)]
        assert tap.paths["/v1/produce/batch"] == 2
    stored = [one for one in client.broker.messages("producer-lost") if isinstance(one, StoredMessage)]
    places = {one.message.value: (one.partition, one.offset) for one in stored}
    assert len({partition for partition, _ in places.values()}) > 1
    assert {str(n): (found.partition, found.offset) for n, found in enumerate(h.result(0) for h in handles)} == places
    assert {handle.result(0).status for handle in handles} == {"duplicate"}


def test_records_know_their_seqs_after_a_lost_answer(client: Client, cli_server: ServerProcess) -> None:
    with tapped(cli_server.address) as tap:
        tap.lose_answer("/v0/topics/producer-lost")
        with Client(tap.url) as lossy, lossy.topic("producer-lost").producer() as out:
            handles = [out.append(n) for n in range(3)]
        assert tap.paths["/v0/topics/producer-lost"] == 2
    assert [handle.result(0) for handle in handles] == [1, 2, 3]
    assert data_of(client, "producer-lost") == [0, 1, 2]


def test_a_forked_child_needs_a_producer_of_its_own(client: Client) -> None:
    out = client.topic("producer-fork").producer(linger_ms=60_000)
    handle = out.append("of the parent")
    uses: list[Callable[[], object]] = [lambda: out.append(1), out.flush, out.close, handle.result]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        for use in uses:
            try:
                use()
            except RuntimeError as error:
                os.write(writing, f"{error}\n".encode())
        os._exit(0)
    _, status = os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        errors = pipe.read().splitlines()
    assert status == 0
    assert len(errors) == len(uses)
    assert all("create a new one there" in error for error in errors)
    out.close()
    assert handle.result(0) == 1
    assert data_of(client, "producer-fork") == ["of the parent"]


_UNCLOSED = """
import sys
from driftq.client import Client
client = Client(sys.argv[1], timeout=1, retries=0)
out = client.topic("producer-exit").producer(linger_ms=60_000)
for number in range(10):
    out.append(number)
"""


def ended(url: str) -> str:
    """What a process logs that appends ten records and ends without closing its producer."""
    command = [sys.executable, "-c", _UNCLOSED, url]
    return subprocess.run(
        command, capture_output=True, env=environment(), text=True, timeout=PATIENCE_S, check=True
    ).stderr


def test_a_process_that_ends_without_closing_its_producer_writes_the_rest(client: Client) -> None:
    assert ended(client.url) == ""
    assert data_of(client, "producer-exit") == list(range(10))


def test_a_process_that_ends_and_cannot_write_the_rest_says_how_much_is_lost() -> None:
    text = ended("http://127.0.0.1:1")
    assert "10 appends" in text
    assert "cannot be reached" in text


def test_an_event_loop_that_ends_before_its_producer_logs_what_is_lost(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def use() -> None:
        out = AsyncClient(url).topic("producer-loop").producer(linger_ms=60_000)
        for n in range(3):
            await out.append(n)
        await asyncio.sleep(0)

    asyncio.run(use())
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("driftq.client.producer")]
    assert "3 appends" in line


def test_the_asynchronous_producer_does_the_same(url: str) -> None:
    async def use() -> None:
        async with AsyncClient(url) as client:
            topic = client.topic("producer-async")
            async with topic.producer(max_batch=9) as out:
                handles = [await out.append(n) for n in range(100)]
                assert [await handle for handle in handles] == list(range(1, 101))
                bad = await out.append("x", tag="t" * 300)
                with pytest.raises(BadRequestError):
                    await bad
            with pytest.raises(ClosedError):
                await out.append(1)
            assert [item.data async for item in topic.read() if isinstance(item, Record)] == list(range(100))
            failing = topic.producer()
            await failing.append("x", tag="t" * 300)
            with pytest.raises(BadRequestError):
                await failing.close()
            await client.broker.create_topic("producer-async")
            async with client.broker.producer("producer-async") as messages:
                places = [await messages.produce(str(n)) for n in range(10)]
                await messages.flush()
            assert [(await place).offset for place in places] == list(range(10))

    asyncio.run(use())


def test_a_cancelled_producer_leaves_nothing_waiting(url: str) -> None:
    async def use() -> None:
        async with AsyncClient(url) as client:
            out = client.topic("producer-cancelled").producer(linger_ms=60_000)
            handle = await out.append(1)
            assert out._task is not None
            out._task.cancel()
            with pytest.raises(ClosedError):
                await handle

    asyncio.run(use())
