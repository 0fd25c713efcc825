"""The broker API with a client as real ones are (http-v1 §21.1), against a real server."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.broker_client import BrokerError, Client, Item, Worker
from tests.support.process import PATIENCE_S, ServerProcess, serving
from tests.support.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with serving(tmp_path) as found:
        found.wait_ready()
        yield found


@pytest.fixture
def client(server: ServerProcess) -> Client:
    return Client(server.address)


def test_produce_consume_ack(client: Client) -> None:
    assert client.healthy()
    client.create_topic("jobs", 2)
    client.produce("jobs", "plain")
    client.produce("jobs", "full", key="user:2", run_id="r", tenant_id="ta", deadline="2099-01-01T00:00:00.5+00:00")
    with client.consume("jobs", "g", "o") as items:
        found = {item.value: item for item in (next(items), next(items))}
    for item in found.values():
        client.ack("jobs", "g", "o", item)  # after the stream is closed, too
    assert found["plain"].attempts == 1
    assert found["full"].key == "user:2"
    assert found["full"].envelope == {"run_id": "r", "tenant_id": "ta", "deadline": "2099-01-01T00:00:00.5+00:00"}
    for item in found.values():
        client.ack("jobs", "g", "o", item)  # a second ack is a success, whoever sends it
    client.produce("jobs", "next")
    with client.consume("jobs", "g", "o") as items:
        assert next(items).value == "next"


def test_nack_and_what_comes_of_it(client: Client) -> None:
    client.create_topic("jobs")
    client.produce("jobs", "v", retry_policy={"max_attempts": 2, "backoff_ms": 50})
    with client.consume("jobs", "g", "o") as items:
        client.nack("jobs", "g", "o", next(items), "boom")
        again = next(items)
    assert (again.attempts, again.last_error) == (2, "boom")
    client.nack("jobs", "g", "o", again, "x" * 5000)
    until(lambda: consumable(client, "dlq.jobs"), bool)  # no dead-letter topic
    with client.consume("dlq.jobs", "g", "o") as items:
        letter = next(items)
    assert (letter.value, letter.attempts, letter.last_error) == ("v", 1, "")
    note = letter.envelope["dlq"]
    assert (note["original_topic"], note["attempts"], note["last_error"]) == ("jobs", 2, "x" * 1024)


def consumable(client: Client, topic: str) -> bool:
    try:
        client.consume(topic, "probe", "o").close()
    except BrokerError:
        return False
    return True


def test_a_refusal_has_code_and_message(client: Client) -> None:
    with pytest.raises(BrokerError) as refused:
        client.produce("nowhere", "v")
    assert (refused.value.status, refused.value.code) == (400, "INVALID_ARGUMENT")
    assert refused.value.message == "topic does not exist (create it first)"
    with pytest.raises(BrokerError, match="400 INVALID_ARGUMENT: topic does not exist"):
        client.consume("nowhere", "g", "o")


def test_a_worker_retries_until_everything_is_done(client: Client) -> None:
    client.create_topic("jobs", 3)
    for number in range(30):
        client.produce("jobs", str(number), key=f"k{number}", idempotency_key=f"i{number}")
        client.produce("jobs", "again", key=f"k{number}", idempotency_key=f"i{number}")
    lock = threading.Lock()
    tried: dict[str, list[int]] = {}
    done: list[str] = []

    def handle(item: Item) -> None:
        with lock:
            tried.setdefault(item.value, []).append(item.attempts)
        if int(item.value) % 3 == 0 and item.attempts < 3:
            raise ValueError(f"not yet, attempt {item.attempts}")
        if item.attempts > 1:
            assert item.last_error == f"not yet, attempt {item.attempts - 1}"
        with lock:
            done.append(item.value)

    worker = Worker(client, "jobs", "g", "o", handle)
    until(lambda: len(done) == 30, bool)  # some are never done
    worker.stop()
    assert sorted(done, key=int) == [str(number) for number in range(30)]
    assert {value: attempts for value, attempts in tried.items() if int(value) % 3 == 0} == {
        str(number): [1, 2, 3] for number in range(0, 30, 3)
    }


def test_a_worker_goes_on_after_a_restart(tmp_path: Path) -> None:
    done: list[str] = []
    with serving(tmp_path) as first:
        first.wait_ready()
        client = Client(first.address)
        client.create_topic("jobs")
        for number in range(10):
            client.produce("jobs", str(number))
        fifth, hold = threading.Event(), threading.Event()

        def handle(item: Item) -> None:
            if item.offset >= 4:
                fifth.set()
                assert hold.wait(PATIENCE_S)
                raise TimeoutError("the server is gone by now")
            done.append(item.value)

        worker = Worker(client, "jobs", "g", "o", handle, threads=1)
        assert fifth.wait(PATIENCE_S), "one thread: when it has the fifth, four are acked"
        assert len(done) == 4
        assert first.stop() == 0
        assert worker.wait_ended(PATIENCE_S)
        hold.set()
    with serving(tmp_path) as second:
        second.wait_ready()
        worker = Worker(Client(second.address), "jobs", "g", "o", lambda item: done.append(item.value))
        until(lambda: len(done) >= 10, bool)  # the rest
        worker.stop()
    assert sorted(done) == [str(number) for number in range(10)]


def test_a_producer_that_is_refused_for_overload_comes_again(tmp_path: Path) -> None:
    with serving(tmp_path, "--dev-limits") as server:
        server.wait_ready()
        client = Client(server.address)
        client.create_topic("jobs")
        client.produce("jobs", "a")
        client.produce("jobs", "b")
        with pytest.raises(BrokerError) as refused:
            client.produce("jobs", "c")
        assert (refused.value.status, refused.value.code) == (429, "RESOURCE_EXHAUSTED")
        with client.consume("jobs", "g", "o") as items:
            taken = next(items)
        acking = threading.Timer(0.05, lambda: client.ack("jobs", "g", "o", taken))
        acking.start()
        client.produce("jobs", "c", idempotency_key="k")
        acking.join()


def test_a_reset_begins_with_nothing_and_keeps_what_there_was(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.wait_ready()
        Client(server.address).create_topic("jobs")
        assert server.stop() == 0
    with serving(tmp_path, "--reset-wal") as server:
        server.wait_ready()
        assert server.get("/v1/topics") == (200, {"topics": []})
        assert server.stop() == 0
    (kept,) = tmp_path.glob("data.bak.*")
    with serving(tmp_path, data_dir=str(kept)) as server:
        server.wait_ready()
        assert server.get("/v1/topics") == (200, {"topics": ["jobs"]})


def test_what_is_old_and_done_goes_and_a_kill_brings_it_back_to_nobody(tmp_path: Path) -> None:
    def earliest(server: ServerProcess) -> int:
        found: int = server.get("/v0/topics/@jobs")[1]["earliest_seq"]  # type: ignore[assignment]
        return found

    with serving(tmp_path, "--v1-retention-ms", "200") as server:
        server.wait_ready()
        client = Client(server.address)
        client.create_topic("jobs", 2)
        for value in ("done", "open"):
            client.produce("jobs", value, key="user:2")
        with client.consume("jobs", "g", "o", 60_000) as items:
            client.ack("jobs", "g", "o", next(items))
            until(lambda: earliest(server) == 2, bool)  # what is done stays
        server.stop(signal.SIGKILL)
    with serving(tmp_path, "--v1-retention-ms", "60000") as server:
        server.wait_ready()
        assert earliest(server) == 2
        client = Client(server.address)
        for group in ("g", "new"):
            with client.consume("jobs", group, "o") as items:
                assert next(items).value == "open"
