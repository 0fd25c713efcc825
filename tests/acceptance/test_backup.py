"""`driftq backup` of a server under load, and `driftq restore`: what comes back is one moment of it."""

import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from driftq.client import Client, Record
from tests.support.command_line import apart
from tests.support.process import ServerProcess, serving

pytestmark = pytest.mark.slow

_TOPICS = ("a", "b")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with small segments and a place for backups."""
    flags = ("--segment-max-events", "200", "--backup-dir", str(tmp_path / "backups"))
    with serving(tmp_path, *flags) as server:
        server.wait_ready()
        yield server


class Load:
    """Writes number n to topic `a`, then to topic `b`, then moves a job on, until it is told to stop."""

    def __init__(self, url: str) -> None:
        self._client = Client(url)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acked = 0
        self.failure: Exception | None = None

    def _run(self) -> None:
        client, number = self._client, 0
        try:
            while not self._stop.is_set():
                number += 1
                for name in _TOPICS:
                    client.topic(name).append({"n": number})
                (job,) = client.topic("jobs").claim(node="worker").claimed
                client.topic("done").append({"job": job.seq})
                client.topic("jobs").ack([job], node="worker")
                client.broker.produce("work", {"n": number})
                self.acked = number
        except Exception as error:  # noqa: BLE001 - the test asks for it
            self.failure = error

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join(60)
        self._client.close()


def _records(client: Client, name: str) -> list[Record]:
    found = list(client.topic(name).read())
    assert all(isinstance(one, Record) for one in found), "nothing is lost"
    return [one for one in found if isinstance(one, Record)]


def _counts(client: Client) -> tuple[list[int], list[int], set[int], set[int], list[int]]:
    """Numbers in `a` and `b`, jobs done, jobs left, numbers in the broker's topic."""
    numbers = [[record.data["n"] for record in _records(client, name)] for name in _TOPICS]
    done = {record.data["job"] for record in _records(client, "done")}
    left = {record.seq for record in _records(client, "jobs")}
    messages = len(_records(client, "@work"))
    return numbers[0], numbers[1], done, left, list(range(messages))


def test_a_backup_under_load_comes_back_as_one_moment(server: ServerProcess, tmp_path: Path) -> None:
    """Each step of the load waits for the one before it, so in any moment each is done as often as it, or once less."""
    url = f"http://{server.address}"
    with Client(url) as client:
        client.topic("jobs").create(type="queue")
        client.topic("jobs").write([{"data": n} for n in range(5000)])
        for topic in ("tasks", "work"):
            client.broker.create_topic(topic)
        for number in range(3):
            client.broker.produce("tasks", {"n": number})
        for delivery in islice(client.broker.consume("tasks", "group"), 2):
            client.broker.ack(delivery)
    load = Load(url)
    load.start()
    try:
        moments: list[tuple[int, int, str]] = []
        for _ in range(2):
            while load.acked < 40 * (len(moments) + 1) and load.failure is None:
                threading.Event().wait(0.01)
            before = load.acked
            done = apart("backup", "--json", DRIFTQ_URL=url)
            assert done.code == 0, done.err
            moments.append((before, load.acked, done.json["id"]))
    finally:
        load.stop()
    assert load.failure is None
    assert server.stop() == 0
    for place, (before, after, backup_id) in enumerate(moments):
        target = tmp_path / f"restored-{place}"
        back = apart("restore", "--from", tmp_path / "backups", "--data-dir", target, "--id", backup_id)
        assert back.code == 0, back.err
        assert apart("verify", "--data-dir", target).code == 0
        _check(tmp_path, target, before, after)


def _check(directory: Path, target: Path, before: int, after: int) -> None:
    with serving(directory, data_dir=str(target)) as restored:
        restored.wait_ready()
        with Client(f"http://{restored.address}") as client:
            a, b, done, left, messages = _counts(client)
        groups = restored.ask("GET", "/v1/groups?topic=tasks&group=group")[1]["groups"]
    steps = [len(a), len(b), len(done), 5000 - len(left), len(messages)]
    assert a == list(range(1, len(a) + 1))
    assert b == a[: len(b)]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] - steps[-1] <= 1
    assert before <= steps[-1] <= after + 1
    assert done.isdisjoint(left) or len(done & left) == 1  # one may be done and not acked yet
    assert done | left == set(range(1, 5001))
    assert groups[0]["partitions"][0]["floor"] == 1


def test_a_second_backup_is_small_and_all_are_listed(server: ServerProcess, tmp_path: Path) -> None:
    url = f"http://{server.address}"
    with Client(url) as client:
        for first in range(0, 3000, 500):
            client.topic("t").write([{"data": {"n": n, "text": "x" * 200}} for n in range(first, first + 500)])
        one = apart("backup", "--json", DRIFTQ_URL=url)
        client.topic("t").append("one more")
        two = apart("backup", "--json", DRIFTQ_URL=url)
        told = client.backups().backups
        assert client.backup(two.json["id"]).backup == told[1]
    assert (one.code, two.code) == (0, 0), (one.err, two.err)
    assert two.json["copied_bytes"] < one.json["copied_bytes"] / 3
    listed = apart("restore", "--from", tmp_path / "backups", "--list", "--json").json
    assert [row["id"] for row in listed] == [one.json["id"], two.json["id"]]
    assert [(row.id, row.state) for row in told] == [(one.json["id"], "done"), (two.json["id"], "done")]
    again = apart("restore", "--from", tmp_path / "backups", "--data-dir", server.data_dir)
    assert (again.code, "not empty" in again.err) == (1, True)


def test_a_backup_goes_nowhere_else(server: ServerProcess, tmp_path: Path) -> None:
    assert server.ask("POST", "/v0/backups", {"to": str(tmp_path / "elsewhere")})[0] == 403
    assert server.ask("POST", "/v0/backups", {"to": str(tmp_path / "backups" / ".." / "elsewhere")})[0] == 403
    assert server.ask("POST", "/v0/backups", {"to": "relative"})[0] == 400
    assert server.get("/v0/backups/b0000000000000-0000")[0] == 404
    assert not (tmp_path / "elsewhere").exists()
