"""The server is killed and stopped under open streams and running writers: nothing is lost, and nothing comes twice
beyond the contract.
"""

import asyncio
import signal
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from driftq.client import AsyncClient, Client, LeaseLostError, Record
from tests.acceptance.restarting import PATIENT, restarting
from tests.support.process import PATIENCE_S
from tests.support.waiting import until

SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGKILL]


class Writing(threading.Thread):
    """Writes 0, 1, 2, … until it is told to stop, each with an answer before the next."""

    def __init__(self, client: Client, topic: str) -> None:
        super().__init__(daemon=True)
        self._topic = client.topic(topic)
        self._enough = threading.Event()
        self.written = 0
        self.start()

    def run(self) -> None:
        while not self._enough.is_set():
            self._topic.append(self.written)
            self.written += 1

    def stop(self) -> int:
        self._enough.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()
        return self.written


def test_a_watch_sees_every_record_once_and_in_order_however_often_the_server_dies(tmp_path: Path) -> None:
    with restarting(tmp_path) as host, Client(f"http://{host.address}", retries=PATIENT) as client:
        client.topic("log").create(durability="fsync")
        seen: list[int] = []
        writing = Writing(client, "log")
        stream = client.topic("log").watch()

        def read() -> None:
            for item in stream:
                assert isinstance(item, Record), item
                seen.append(item.data)
                if item.data == "end":
                    return

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        for number in SIGNALS:
            before = len(seen)
            until(lambda before=before: len(seen) - before, lambda more: more >= 20)  # type: ignore[misc]
            host.again(number)
        written = writing.stop()
        client.topic("log").append("end")
        reader.join(PATIENCE_S)
        stream.close()
        assert seen == [*range(written), "end"]
        assert written >= 60


def test_an_asynchronous_watch_does_the_same(tmp_path: Path) -> None:
    async def watch(address: str, seen: list[object]) -> None:
        async with AsyncClient(f"http://{address}", retries=PATIENT) as client:
            async for item in client.topic("log").watch():
                assert isinstance(item, Record), item
                seen.append(item.data)
                if item.data == "end":
                    return

    with restarting(tmp_path) as host, Client(f"http://{host.address}", retries=PATIENT) as client:
        client.topic("log").create(durability="fsync")
        seen: list[object] = []
        reader = threading.Thread(target=lambda: asyncio.run(watch(host.address, seen)), daemon=True)
        reader.start()
        writing = Writing(client, "log")
        until(lambda: len(seen), lambda count: count >= 20)
        host.again(signal.SIGKILL)
        written = writing.stop()
        client.topic("log").append("end")
        reader.join(PATIENCE_S)
        assert seen == [*range(written), "end"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_consumer_gets_every_message_and_none_again_that_it_acked(tmp_path: Path, number: signal.Signals) -> None:
    with restarting(tmp_path) as host, Client(f"http://{host.address}", retries=PATIENT) as client:
        broker = client.broker
        broker.create_topic("work", 2)
        for n in range(60):
            broker.produce("work", str(n), key=str(n))
        acked: Counter[str] = Counter()
        stream = broker.consume("work", "g", lease_ms=5000, max_in_flight=4)
        for count, delivery in enumerate(stream, 1):
            assert not acked[delivery.value], "delivered again after its ack"
            # What was read before the restart and not acked is nobody's: it comes again.
            with suppress(LeaseLostError):
                broker.ack(delivery)
                acked[delivery.value] += 1
            if count in (15, 30):
                host.again(number)
            if len(acked) == 60:
                break
        stream.close()
        assert acked == Counter(str(n) for n in range(60))
        (group,) = broker.groups("work", "g")
        assert sum(row.lag for row in group.partitions) == 0


def test_what_is_written_while_the_server_dies_is_written_once(tmp_path: Path) -> None:
    with restarting(tmp_path) as host, Client(f"http://{host.address}", retries=PATIENT) as client:
        client.topic("log").create(durability="fsync")
        writers = [Writing(client, "log") for _ in range(3)]
        until(lambda: min(one.written for one in writers), lambda count: count >= 10)
        for number in SIGNALS:
            host.again(number)
        counts = [one.stop() for one in writers]
        found = Counter(item.data for item in client.topic("log").read() if isinstance(item, Record))
        assert found == sum((Counter(range(count)) for count in counts), Counter())
