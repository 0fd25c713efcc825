"""Lineage and rollup: what agent runs did, as tables."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from driftq.client import Client
from driftq.model.message import Envelope, RetryPolicy
from driftq.pipeline.jobs.lineage.run_tables import ATTEMPTS, RUNS, STEPS
from driftq.pipeline.jobs.rollup.minute_figures import ROLLUP
from driftq.pipeline.lake.delta_tables import Lake
from tests.pipeline.jobs import RunJob


@pytest.fixture
def client(server_url: str) -> Iterator[Client]:
    with Client(server_url) as made:
        yield made


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


class Workshop:
    """A topic of the broker and one worker of it."""

    def __init__(self, client: Client, topic: str) -> None:
        self._broker = client.broker
        self.topic = topic
        self._broker.create_topic(topic)

    def produce(self, run_id: str, step_id: str, parent: str = "", retry: RetryPolicy | None = None) -> None:
        """One step of a run."""
        named = Envelope(run_id=run_id, step_id=step_id, parent_step_id=parent, tenant_id="acme", retry_policy=retry)
        self._broker.produce(self.topic, "work", envelope=named)

    def work(self, count: int, *, fail: str | None = None) -> None:
        """Take so many deliveries and finish them, or fail those of a run."""
        deliveries = self._broker.consume(self.topic, "workers", lease_ms=60_000)
        for _ in range(count):
            delivery = next(deliveries)
            if fail is not None and delivery.envelope.run_id == fail:
                self._broker.nack(delivery, reason="boom")
            else:
                self._broker.ack(delivery)
        deliveries.close()


def rows(lake: Lake, name: str, schema: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lake.table(name, schema).read().to_pylist()
    return found


def test_runs_steps_and_attempts_are_told_and_open_runs_until_they_end(job: RunJob, client: Client, lake: Lake) -> None:
    shop = Workshop(client, "lineage-work")
    topics = ["@lineage-work", "@dlq.lineage-work"]
    client.broker.create_topic("dlq.lineage-work")
    shop.produce("good", "plan")
    shop.produce("bad", "plan", retry=RetryPolicy(max_attempts=2))
    shop.produce("good", "write", "plan")
    shop.work(4, fail="bad")
    shop.produce("slow", "plan")
    ended = job("lineage", topics=topics, lake=str(lake.root))
    assert (ended.facts["runs"], ended.facts["open_runs"]) == (3, 1)
    runs = {row["run_id"]: row for row in rows(lake, "runs", RUNS)}
    assert {name: row["status"] for name, row in runs.items()} == {"good": "done", "bad": "dead", "slow": "running"}
    assert runs["good"]["critical_path"] == "plan > write"
    assert runs["good"]["latency_ms"] == (runs["good"]["end"] - runs["good"]["start"]).total_seconds() * 1000
    assert (runs["bad"]["retries"], runs["bad"]["last_error"]) == (1, "boom")
    steps = {(row["run_id"], row["step_id"]): row for row in rows(lake, "steps", STEPS)}
    assert len(steps) == 4
    assert steps["good", "write"]["parent_step_id"] == "plan"
    (dead,) = (row for row in rows(lake, "attempts", ATTEMPTS) if row["run_id"] == "bad")
    assert (dead["status"], dead["deliveries"], dead["group"]) == ("dead", 2, "workers")

    shop.work(1)  # the slow one ends, and no record tells of it
    shop.produce("late", "plan")
    assert job("lineage", topics=topics, lake=str(lake.root)).facts["open_runs"] == 1
    status = {row["run_id"]: row["status"] for row in rows(lake, "runs", RUNS)}
    assert status == {"good": "done", "bad": "dead", "slow": "done", "late": "running"}


def test_a_run_is_dead_by_the_server_or_by_a_letter_where_the_other_is_not_read(
    job: RunJob, client: Client, tmp_path: Path
) -> None:
    shop = Workshop(client, "lineage-dead")
    shop.produce("bad", "plan", retry=RetryPolicy(max_attempts=1))
    shop.work(1, fail="bad")
    ends = []
    for topic in ("@lineage-dead", "@dlq.lineage-dead"):
        lake = Lake(tmp_path / topic)
        assert job("lineage", topics=[topic], lake=str(lake.root)).facts["open_runs"] == 0
        (run,), (step,) = rows(lake, "runs", RUNS), rows(lake, "steps", STEPS)
        assert (run["status"], run["dead_steps"], run["last_error"]) == ("dead", 1, "boom")
        assert (step["step_id"], step["topic"], step["status"]) == ("plan", "@lineage-dead", "dead")
        ends.append(step["end"])
    assert ends[0] == ends[1]


def test_a_rollup_adds_up_over_batches_and_counts_failures_where_they_happened(
    job: RunJob, client: Client, lake: Lake
) -> None:
    shop = Workshop(client, "rollup-work")
    client.broker.create_topic("dlq.rollup-work")
    topics = ["@rollup-work", "@dlq.rollup-work", "rollup-plain"]
    client.topic("rollup-plain").write([{"data": {"n": n}} for n in range(50)])
    for number in range(4):
        shop.produce(f"run-{number}", "plan", retry=RetryPolicy(max_attempts=2))
    shop.work(5, fail="run-0")
    job("rollup", topics=topics, lake=str(lake.root))
    client.topic("rollup-plain").write([{"data": {"n": n}} for n in range(30)])
    job("rollup", topics=topics, lake=str(lake.root))
    figures = rows(lake, "rollup", ROLLUP)

    def total(topic: str, figure: str) -> int:
        return sum(row[figure] for row in figures if row["topic"] == topic)

    assert total("rollup-plain", "records") == 80
    assert total("rollup-plain", "bytes") == sum(len(f'{{"n":{n}}}') for n in [*range(50), *range(30)])
    assert (total("@rollup-work", "records"), total("@dlq.rollup-work", "records")) == (4, 1)
    assert (total("@rollup-work", "errors"), total("@rollup-work", "retries")) == (1, 1)
    assert {row["tenant_id"] for row in figures if row["topic"] == "@rollup-work"} == {"acme"}
    assert all(row["p50_age_ms"] <= row["p99_age_ms"] for row in figures if row["records"])


def test_a_rollup_counts_once_however_topics_are_chosen_and_reads_their_dead_letters(
    job: RunJob, client: Client, lake: Lake
) -> None:
    shop = Workshop(client, "rollup bad:~*é")
    shop.produce("run-bad", "plan", retry=RetryPolicy(max_attempts=2))
    shop.work(2, fail="run-bad")
    queue = client.topic("rollup-queue")
    queue.create(type="queue", max_deliveries=1, dead_letter="rollup-queue.dead")
    queue.write([{"data": {"n": n}} for n in range(3)])
    queue.nack(queue.claim(2).claimed)
    queue.claim(3)
    one, other = ["@rollup%20bad:%7E%2A%C3%A9", "rollup-queue"], ["rollup-queue"]
    job("rollup", topics=one, lake=str(lake.root))
    queue.write([{"data": {"n": 3}}])
    for topics in (other, one):
        job("rollup", topics=topics, lake=str(lake.root))
    figures: dict[str, list[int]] = {}
    for row in rows(lake, "rollup", ROLLUP):
        before = figures.get(row["topic"], [0, 0, 0])
        figures[row["topic"]] = [before[0] + row["records"], before[1] + row["errors"], before[2] + row["retries"]]
    assert figures == {
        "@rollup%20bad:%7E%2A%C3%A9": [1, 1, 1],
        "@dlq.rollup%20bad:%7E%2A%C3%A9": [1, 0, 0],
        "rollup-queue": [2, 2, 0],
        "rollup-queue.dead": [2, 0, 0],
    }
