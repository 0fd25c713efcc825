"""Workers against a real server: concurrency, leases, decisions, effects, drains and restarts."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from driftq.client import (
    AsyncClient,
    AsyncWorker,
    Client,
    DeadLetter,
    Delivery,
    Envelope,
    Job,
    NewMessage,
    NotFoundError,
    Record,
    Retry,
    RetryPolicy,
    StoredMessage,
    Worker,
)
from tests.acceptance.restarting import PATIENT, restarting
from tests.acceptance.tap import tapped
from tests.support.process import PATIENCE_S, ServerProcess, environment
from tests.support.waiting import until


@contextmanager
def working(worker: Worker[Any]) -> Iterator[None]:
    """A worker in a thread, stopped and drained at the end."""
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def lag(client: Client, topic: str, group: str) -> int:
    return sum(row.lag for one in client.broker.groups(topic, group) for row in one.partitions)


class Crowd:
    """A handler that notes who is in it, and lets go of them when so many are."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self._lock = threading.Lock()
        self._inside = 0
        self.most = 0
        self.seen: Counter[Any] = Counter()

    def __call__(self, value: Any) -> None:
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)
            self.seen[value] += 1
        self._barrier.wait(PATIENCE_S)
        with self._lock:
            self._inside -= 1


def test_as_many_jobs_as_asked_for_are_handled_at_a_time_and_each_once(client: Client) -> None:
    queue = client.topic("crowd")
    queue.create(type="queue")
    queue.append_raw(b"".join(b"%d\n" % n for n in range(12)))
    crowd = Crowd(3)
    worker = Worker.queue(client, "crowd", lambda job: crowd(job.data), concurrency=3)
    with working(worker):
        until(lambda: queue.info().count, lambda count: count == 0)
    assert (crowd.most, crowd.seen) == (3, Counter(range(12)))
    assert worker.stats.acked == 12


def test_as_many_messages_of_a_group_are_handled_at_a_time_and_each_once(client: Client) -> None:
    client.broker.create_topic("crowd", 2)
    for n in range(12):
        client.broker.produce("crowd", str(n), key=str(n))
    crowd = Crowd(3)
    worker = Worker.group(client, "crowd", "g", lambda message: crowd(message.value), concurrency=3)
    with working(worker):
        until(lambda: lag(client, "crowd", "g"), lambda count: count == 0 and sum(crowd.seen.values()) == 12)
    assert (crowd.most, crowd.seen) == (3, Counter(str(n) for n in range(12)))


def test_a_handler_that_takes_longer_than_its_lease_keeps_what_it_holds(client: Client) -> None:
    queue = client.topic("slow")
    queue.create(type="queue")
    queue.push("job")
    client.broker.create_topic("slow")
    client.broker.produce("slow", "message")
    begun: Counter[str] = Counter()

    def slowly(what: str) -> None:
        begun[what] += 1
        threading.Event().wait(4.0)

    jobs = Worker.queue(client, "slow", lambda job: slowly(job.data), lease_ms=1500)
    messages = Worker.group(client, "slow", "g", lambda message: slowly(message.value), lease_ms=1500)
    with working(jobs), working(messages):
        until(lambda: queue.info().count + lag(client, "slow", "g"), lambda left: left == 0 and len(begun) == 2)
    assert begun == Counter(job=1, message=1)
    assert jobs.stats.lost == messages.stats.lost == 0


def decide(seen: Counter[str]) -> Callable[[str], Retry | None]:
    def handler(value: str) -> Retry | None:
        seen[value] += 1
        if value == "later" and seen[value] < 3:
            raise Retry(after=0.05, reason="not yet")
        if value == "returned" and seen[value] == 1:
            return Retry(after=0)
        if value == "never":
            raise DeadLetter("bad input")
        if value == "bug" and seen[value] == 1:
            raise KeyError("x")
        return None

    return handler


def test_a_handler_decides_what_becomes_of_a_job(client: Client) -> None:
    queue = client.topic("decide")
    queue.create(type="queue", dead_letter="decide.dead")
    for value in ("fine", "later", "returned", "never", "bug"):
        queue.push(value, tag=value)
    seen: Counter[str] = Counter()
    handler = decide(seen)
    worker = Worker.queue(client, "decide", lambda job: handler(job.data))
    with working(worker):
        until(lambda: queue.info().count, lambda count: count == 0)
    assert seen == Counter(fine=1, later=3, returned=2, never=1, bug=2)
    (letter,) = [item for item in queue.dead_letters() if isinstance(item, Record)]
    assert (letter.data, letter.tag) == ("never", "never")
    assert letter.meta is not None
    assert letter.meta["$dead_letter_reason"] == "bad input"
    assert (worker.stats.acked, worker.stats.retried, worker.stats.failed, worker.stats.dead_lettered) == (4, 3, 1, 1)


def test_a_handler_decides_what_becomes_of_a_message(client: Client) -> None:
    client.broker.create_topic("decide")
    for value in ("fine", "later", "returned", "never", "bug"):
        client.broker.produce("decide", value, envelope=Envelope(retry_policy=RetryPolicy(max_attempts=5)))
    seen: Counter[str] = Counter()
    handler = decide(seen)
    worker = Worker.group(client, "decide", "g", lambda message: handler(message.value))
    with working(worker):
        until(lambda: lag(client, "decide", "g"), lambda left: left == 0 and len(seen) == 5)
    assert seen == Counter(fine=1, later=3, returned=2, never=1, bug=2)
    (letter,) = [item for item in client.broker.dlq("decide") if isinstance(item, StoredMessage)]
    assert letter.message.envelope is not None
    assert letter.message.envelope.dlq is not None
    assert letter.message.envelope.dlq.last_error == "bad input"


def test_an_effect_that_has_happened_does_not_happen_again(client: Client) -> None:
    queue = client.topic("once")
    queue.create(type="queue")
    done, open_ = queue.push("done").last_seq, queue.push("open").last_seq
    client.broker.create_topic("effects")
    key = f"once:{queue.segments().epoch}:{done}"
    keys = client.broker.idempotency
    keys.begin("effects", "queue:once", key)
    keys.commit("effects", "queue:once", key)
    seen: list[str] = []
    worker = Worker.queue(client, "once", lambda job: seen.append(job.data), effects="effects")
    with working(worker):
        until(lambda: queue.info().count, lambda count: count == 0)
    assert seen == ["open"]
    assert worker.stats.skipped == 1
    own = f"once:{queue.segments().epoch}:{open_}"
    assert keys.get("effects", "queue:once", own).status == "COMMITTED"


def test_the_result_of_an_effect_is_kept_and_its_failure_lets_it_be_tried_again(client: Client) -> None:
    client.broker.create_topic("results")
    client.broker.produce("results", "x", envelope=Envelope(idempotency_key="k", tenant_id="t"))
    tries: list[int] = []

    def handle(message: Delivery) -> str:
        tries.append(message.attempts)
        if len(tries) == 1:
            raise ValueError("no luck")
        return "receipt 5"

    with working(Worker.group(client, "results", "g", handle, effects=True)):
        until(lambda: lag(client, "results", "g"), lambda left: left == 0 and len(tries) == 2)
    begun = client.broker.idempotency.begin("results", "g", "k", tenant_id="t")
    assert (begun.already_done, begun.result) == (True, b"receipt 5")


def test_an_asynchronous_worker_handles_both(url: str) -> None:
    async def use() -> tuple[list[str], list[int]]:
        texts: list[str] = []
        numbers: list[int] = []
        enough = asyncio.Event()

        def note() -> None:
            if len(texts) + len(numbers) == 10:
                enough.set()

        async with AsyncClient(url) as client:
            await client.broker.create_topic("aio")
            await client.topic("aio").create(type="queue")
            for n in range(5):
                await client.broker.produce("aio", str(n))
                await client.topic("aio").push(n)

            async def message(delivery: Delivery) -> None:
                texts.append(delivery.value)
                note()

            async def job(job: Job) -> None:
                numbers.append(job.data)
                note()

            workers: list[AsyncWorker[Any]] = [
                AsyncWorker.group(client, "aio", "g", message),
                AsyncWorker.queue(client, "aio", job),
            ]
            running = [asyncio.create_task(worker.run()) for worker in workers]
            async with asyncio.timeout(PATIENCE_S):
                await enough.wait()
                for worker in workers:
                    worker.stop()
                await asyncio.gather(*running)
            assert [worker.stats.acked for worker in workers] == [5, 5]
        return texts, numbers

    texts, numbers = asyncio.run(use())
    assert sorted(texts) == [str(n) for n in range(5)]
    assert sorted(numbers) == list(range(5))


def test_work_that_a_handler_returns_instead_of_doing_it_is_nacked_and_logged(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """proves: G-CLIENT-1; row: F-WORKER-2"""
    queue = client.topic("hidden")
    queue.create(type="queue")
    queue.push("job")
    client.broker.create_topic("hidden")
    client.broker.produce("hidden", "message")

    async def never(_: object) -> None:
        pytest.fail("the coroutine ran")

    def hidden(item: object) -> Any:
        return never(item)

    jobs = Worker.queue(client, "hidden", hidden)
    messages = Worker.group(client, "hidden", "g", hidden)
    with working(jobs), working(messages):
        until(lambda: (jobs.stats.failed, messages.stats.failed), lambda failed: min(failed) > 0)
    assert (jobs.stats.acked, messages.stats.acked) == (0, 0)
    assert queue.info().count == 1
    assert lag(client, "hidden", "g") == 1
    told = [
        record for record in caplog.records if record.exc_info and "returned a coroutine" in str(record.exc_info[1])
    ]
    assert told
    assert {record.levelname for record in told} == {"ERROR"}


def test_a_coroutine_that_forgets_to_await_is_nacked(url: str) -> None:
    async def use() -> tuple[int, int]:
        async with AsyncClient(url) as client:
            await client.topic("forgetful").create(type="queue")
            await client.topic("forgetful").push("job")

            async def inner(_: Job) -> None:
                pytest.fail("the coroutine ran")

            async def forgetful(job: Job) -> Any:
                worker.stop()
                return inner(job)

            worker = AsyncWorker.queue(client, "forgetful", forgetful)
            async with asyncio.timeout(PATIENCE_S):
                await worker.run()
            return worker.stats.acked, worker.stats.failed

    assert asyncio.run(use()) == (0, 1)


def test_an_async_worker_acks_what_a_plain_function_did_and_warns_once(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def use() -> tuple[list[Any], int]:
        done: list[Any] = []
        async with AsyncClient(url) as client:
            await client.topic("plain").create(type="queue")
            for n in range(3):
                await client.topic("plain").push(n)

            def plain(job: Job) -> Any:
                done.append(job.data)
                if len(done) == 3:
                    worker.stop()

            worker = AsyncWorker.queue(client, "plain", plain)
            async with asyncio.timeout(PATIENCE_S):
                await worker.run()
            return done, worker.stats.acked

    done, acked = asyncio.run(use())
    assert (sorted(done), acked) == ([0, 1, 2], 3)
    assert [record.getMessage() for record in caplog.records if "plain function" in record.getMessage()] == [
        "the handler of an AsyncWorker is a plain function and blocks the event loop; use Worker for it"
    ]


def test_a_worker_without_a_queue_says_so(client: Client) -> None:
    with pytest.raises(NotFoundError):
        Worker.queue(client, "absent", lambda _: None).run()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_handlers_end_and_nothing_new_begin(client: Client, number: signal.Signals) -> None:
    name = f"drain.{number.name}"
    queue = client.topic(name)
    queue.create(type="queue")
    queue.append_raw(b"".join(b"%d\n" % n for n in range(8)))
    script = Path(__file__).with_name("draining_worker.py")
    command = [sys.executable, str(script), client.url, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(), text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("begun")
        process.send_signal(number)
        told = process.stdout.read().split("\n")
        assert process.wait(PATIENCE_S) == 0
    ended = [line for line in told if line.startswith("ended")]
    assert 1 <= len(ended) <= 2
    assert f"acked {len(ended)}" in told
    state = queue.info()
    assert state.count == 8 - len(ended)
    assert state.queue is not None
    assert (state.queue.ready, state.queue.in_flight) == (8 - len(ended), 0)


@pytest.mark.parametrize("max_deliveries", [0, 1])
def test_a_stop_gives_back_what_was_taken_ahead(client: Client, max_deliveries: int) -> None:
    """Except at the last delivery, where going back would give a job up: that one is handled."""
    name = f"ahead-{max_deliveries}"
    queue = client.topic(name)
    queue.create(type="queue", max_deliveries=max_deliveries, dead_letter=f"{name}.dead")
    for n in range(5):
        queue.push(n)
    begun, go = threading.Event(), threading.Event()
    handled: list[int] = []

    def handle(job: Job) -> None:
        handled.append(job.data)
        begun.set()
        go.wait(PATIENCE_S)

    worker = Worker.queue(client, name, handle, concurrency=1, lease_ms=60_000)
    with working(worker):
        assert begun.wait(PATIENCE_S)
        until(lambda: _in_flight(client, name), lambda count: count == 2)
        worker.stop()
        go.set()
    assert _in_flight(client, name) == 0
    assert handled == ([0, 1] if max_deliveries else [0])
    left = [job.data for job in queue.claim(5).claimed]
    assert sorted(left) == [n for n in range(5) if n not in handled]


def test_a_stop_gives_back_what_was_taken_ahead_while_handlers_still_run(client: Client) -> None:
    queue = client.topic("at-once")
    queue.create(type="queue")
    for n in range(4):
        queue.push(n)
    begun, go = threading.Event(), threading.Event()

    def handle(_: Job) -> None:
        begun.set()
        go.wait(PATIENCE_S)

    worker = Worker.queue(client, "at-once", handle, concurrency=1, lease_ms=60_000)
    with working(worker):
        assert begun.wait(PATIENCE_S)
        until(lambda: _in_flight(client, "at-once"), lambda count: count == 2)
        worker.stop()
        until(lambda: _in_flight(client, "at-once"), lambda count: count == 1)
        assert sorted(job.data for job in queue.claim(5).claimed) == [1, 2, 3]
        go.set()
    assert worker.stats.acked == 1


def test_a_stop_gives_messages_back_at_once_and_uses_up_no_attempt(client: Client) -> None:
    client.broker.create_topic("back")
    once = Envelope(retry_policy=RetryPolicy(max_attempts=1))
    for n in range(4):
        client.broker.produce("back", str(n), envelope=once)
    begun, go = threading.Event(), threading.Event()

    def handle(_: Delivery) -> None:
        begun.set()
        go.wait(PATIENCE_S)

    worker = Worker.group(client, "back", "g", handle, concurrency=1, lease_ms=60_000)
    with working(worker):
        assert begun.wait(PATIENCE_S)
        until(lambda: _leased(client, "back"), lambda count: count == 2)
        worker.stop()
        until(lambda: _leased(client, "back"), lambda count: count == 1)
        with client.broker.consume("back", "g", owner="another", lease_ms=60_000) as stream:
            got = [next(stream) for _ in range(3)]
        assert [(one.value, one.attempts, one.last_error) for one in got] == [(n, 1, "") for n in "123"]
        go.set()
    assert worker.stats.acked == 1
    assert client.broker.ack_batch(got) == [None] * 3
    assert lag(client, "back", "g") == 0
    assert list(client.broker.dlq("back")) == []


def test_workers_that_stop_under_load_keep_nothing_back(client: Client) -> None:
    """Whatever was on its way to a worker that stops is with another one at once, long before any lease ends."""
    client.broker.create_topic("relay", 3)
    for at in range(0, 3000, 1000):
        client.broker.produce_batch("relay", [NewMessage(str(n), str(n)) for n in range(at, at + 1000)])
    seen: Counter[str] = Counter()
    lock = threading.Lock()

    def handle(message: Delivery) -> None:
        with lock:
            seen[message.value] += 1

    for stop_at in (200, 700, 1500, 3000):
        worker = Worker.group(client, "relay", "g", handle, concurrency=5, lease_ms=600_000)
        with working(worker):
            until(lambda: len(seen), lambda count, stop_at=stop_at: count >= stop_at)  # type: ignore[misc]
        assert _leased(client, "relay") == 0
    assert seen == Counter(str(n) for n in range(3000))
    assert lag(client, "relay", "g") == 0


@pytest.mark.parametrize("effects", [False, True])
@pytest.mark.parametrize("kind", ["queue", "group"])
def test_a_cancelled_worker_gives_everything_back(client: Client, kind: str, effects: bool) -> None:
    name = f"cancelled-{kind}-{effects}"
    client.broker.create_topic(name)
    queue = client.topic(name)
    queue.create(type="queue")
    for n in range(10):
        queue.push(n)
        client.broker.produce(name, str(n))

    async def cancel() -> int:
        begun, ended = asyncio.Event(), 0

        async def handle(_: object) -> None:
            nonlocal ended
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended += 1

        async with AsyncClient(client.url) as own:
            worker: AsyncWorker[Any] = (
                AsyncWorker.queue(own, name, handle, concurrency=2, effects=name if effects else None)
                if kind == "queue"
                else AsyncWorker.group(own, name, "g", handle, concurrency=2, effects=effects)
            )
            running = asyncio.create_task(worker.run())
            async with asyncio.timeout(PATIENCE_S):
                await begun.wait()
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
            assert worker.stats.acked == worker.stats.lost == 0
        return ended

    assert 1 <= asyncio.run(cancel()) <= 2
    assert (_in_flight(client, name), _leased(client, name)) == (0, 0)
    seen: Counter[str] = Counter()
    workers: list[Worker[Any]] = [
        Worker.queue(client, name, lambda job: seen.update([f"job {job.data}"]), effects=name if effects else None),
        Worker.group(client, name, "g", lambda message: seen.update([f"message {message.value}"]), effects=effects),
    ]
    with working(workers[kind == "group"]):
        until(lambda: sum(seen.values()), lambda count: count == 10)


def test_jobs_that_fail_together_are_given_back_by_one_request_per_delay(
    client: Client, cli_server: ServerProcess
) -> None:
    queue = client.topic("nacks")
    queue.create(type="queue")
    queue.append_raw(b"".join(b"%d\n" % n for n in range(20)))

    async def fail(url: str) -> None:
        begun, together = 0, asyncio.Event()

        async def handle(job: Job) -> None:
            nonlocal begun
            begun += 1
            if begun == 20:
                worker.stop()
                together.set()
            await together.wait()
            raise Retry(after=600 if job.data % 2 else 900)

        async with AsyncClient(url) as own:
            worker = AsyncWorker.queue(own, "nacks", handle, concurrency=20)
            async with asyncio.timeout(PATIENCE_S):
                await worker.run()
            assert (worker.stats.retried, worker.stats.lost) == (20, 0)

    with tapped(cli_server.address) as tap:
        asyncio.run(fail(tap.url))
        assert tap.paths["/v0/topics/nacks/nack"] == 2
    assert _in_flight(client, "nacks") == 0
    assert queue.claim(20).claimed == []


def test_all_leases_are_extended_by_one_request_per_third_of_a_lease(client: Client, cli_server: ServerProcess) -> None:
    queue = client.topic("beats")
    queue.create(type="queue")
    queue.append_raw(b"".join(b"%d\n" % n for n in range(30)))
    client.broker.create_topic("beats")
    client.broker.produce_batch("beats", [NewMessage(str(n)) for n in range(30)])
    go = threading.Event()
    lease_ms = 1500
    with tapped(cli_server.address) as tap, Client(tap.url) as own:
        jobs = Worker.queue(own, "beats", lambda _: bool(go.wait(PATIENCE_S)), concurrency=15, lease_ms=lease_ms)
        messages = Worker.group(
            own, "beats", "g", lambda _: bool(go.wait(PATIENCE_S)), concurrency=15, lease_ms=lease_ms
        )
        began = time.monotonic()
        with working(jobs), working(messages):
            paths = ("/v0/topics/beats/extend", "/v1/extend/batch")
            beats = until(lambda: [tap.paths[path] for path in paths], lambda found: min(found) >= 4)
            thirds = (time.monotonic() - began) / (lease_ms / 3000)
            go.set()
            until(lambda: (jobs.stats.acked, messages.stats.acked), lambda acked: acked == (30, 30))
    assert max(beats) <= thirds
    assert (jobs.stats.lost, messages.stats.lost) == (0, 0)


def _leased(client: Client, topic: str) -> int:
    return sum(row.in_flight for one in client.broker.groups(topic, "g") for row in one.partitions)


def _in_flight(client: Client, name: str) -> int:
    counts = client.topic(name).info(touch=False).queue
    assert counts is not None
    return counts.in_flight


def test_a_signal_is_given_back_to_who_had_it(client: Client) -> None:
    queue = client.topic("handlers")
    queue.create(type="queue")
    queue.append("job")
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        worker = Worker.queue(client, "handlers", lambda _: worker.stop())
        worker.run()
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_a_worker_outlives_its_server_and_every_effect_happens_once(tmp_path: Path) -> None:
    with restarting(tmp_path) as host, Client(f"http://{host.address}", retries=PATIENT) as client:
        client.broker.create_topic("work")
        for n in range(40):
            client.broker.produce("work", str(n))
        effects: Counter[str] = Counter()

        def handle(message: Delivery) -> None:
            effects[message.value] += 1
            threading.Event().wait(0.05)

        worker = Worker.group(client, "work", "g", handle, concurrency=4, lease_ms=3000, effects=True)
        with working(worker):
            for count, number in ((8, signal.SIGKILL), (20, signal.SIGTERM)):
                until(lambda: sum(effects.values()), lambda done, count=count: done >= count)  # type: ignore[misc]
                host.again(number)
            until(lambda: lag(client, "work", "g"), lambda left: left == 0 and len(effects) == 40)
        assert effects == Counter(str(n) for n in range(40))
