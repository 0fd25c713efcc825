"""The job `redrive`: dead letters that SQL selects, back to where they failed."""

from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from driftq.client import Client
from driftq.pipeline import run_job
from driftq.pipeline.runs.job import JobResult
from driftq.pipeline.runs.launcher import RunSettings
from tests.pipeline.topics import ask, fresh, records, values, write
from tests.support.process import PATIENCE_S, ServerProcess
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRIFTQ_PIPELINE_DIR", str(tmp_path))


def redrive(server_url: str, topic: str, **options: Any) -> JobResult:
    return run_job("redrive", settings=RunSettings(server=server_url), topics=[topic], **options)


def queue_with_letters(server: ServerProcess, tags: list[str]) -> tuple[str, str]:
    """A queue whose jobs have all failed, and the topic where they are."""
    queue, dead = fresh("jobs"), fresh("dead")
    ask(server, "PUT", f"/v0/topics/{queue}", {"type": "queue", "max_deliveries": 1, "dead_letter": dead})
    for number, tag in enumerate(tags):
        write(server, queue, [number], tag=tag, meta={"tenant_id": f"t{tag}"})
    fail_jobs(server, queue)
    assert len(values(server, dead)) == len(tags)
    return queue, dead


def fail_jobs(server: ServerProcess, queue: str) -> None:
    """Claim the jobs of a queue and give them back, until they are dead."""
    for _ in range(2):  # the second one finds them delivered too often
        _, claimed = server.ask("POST", f"/v0/topics/{queue}/claim", {"node": "n", "max": 100})
        seqs = [job["$seq"] for job in claimed["claimed"]]
        server.ask("POST", f"/v0/topics/{queue}/nack", {"node": "n", "seqs": seqs})


def test_letters_of_a_queue_that_are_selected_come_back_once(server: ServerProcess, server_url: str) -> None:
    queue, dead = queue_with_letters(server, ["a", "b", "a"])
    audit = fresh("audit")
    where = "tag = 'a' AND tenant = 'ta' AND reason = 'max_deliveries' AND age_s < 86400"
    dry = redrive(server_url, dead, where=where, dry_run=True, audit=audit)
    assert dry.tables["letters"] == [{"dlq": dead, "origin": queue, "letters": 2}]
    assert values(server, queue) == []
    moved = redrive(server_url, dead, where=where, audit=audit).facts
    assert (moved["matched"], moved["moved"], moved["failed"]) == (2, 2, 0)
    found = records(server, queue)
    assert [(record["data"], record["$tag"]) for record in found] == [(0, "a"), (2, "a")]
    assert found[0]["meta"] == {"tenant_id": "ta", "redriven": f"{audit}:1"}
    assert [note["kind"] for note in values(server, audit)] == ["redrive", "redriven"]
    assert redrive(server_url, dead, audit=audit).facts["moved"] == 1
    assert redrive(server_url, dead, audit=audit).facts["matched"] == 0
    assert [record["data"] for record in records(server, queue)] == [0, 2, 1]


def test_a_redrive_that_was_cut_off_is_finished_by_the_next(server: ServerProcess, server_url: str) -> None:
    queue, dead = queue_with_letters(server, ["a", "b"])
    audit = fresh("audit")
    epoch = server.get(f"/v0/topics/{dead}/segments")[1]["epoch"]
    note = {"kind": "redrive", "dlq": dead, "epoch": epoch, "at_ms": 1, "letters": [[1, queue, 1]]}
    write(server, audit, [note], tag=dead)
    facts = redrive(server_url, dead, audit=audit, rate=100.0).facts
    assert (facts["finished"], facts["moved"]) == (1, 1)
    assert values(server, queue) == [0, 1]


def test_a_redrive_that_was_cut_off_is_finished_without_the_queues_that_are_gone(
    server: ServerProcess, server_url: str
) -> None:
    queue, dead = queue_with_letters(server, ["a", "b"])
    other, audit = fresh("other"), fresh("audit")
    ask(server, "PUT", f"/v0/topics/{other}", {"type": "queue", "max_deliveries": 1, "dead_letter": dead})
    write(server, other, ["of the other"])
    fail_jobs(server, other)
    epoch = server.get(f"/v0/topics/{dead}/segments")[1]["epoch"]
    letters = [[1, queue, 1], [3, other, 1]]
    write(server, audit, [{"kind": "redrive", "dlq": dead, "epoch": epoch, "at_ms": 1, "letters": letters}], tag=dead)
    ask(server, "DELETE", f"/v0/topics/{queue}")
    facts = redrive(server_url, dead, audit=audit).facts
    assert (facts["finished"], facts["matched"], facts["moved"], facts["failed"]) == (1, 2, 0, 2)
    assert values(server, other) == ["of the other"]
    done = values(server, audit)[-1]
    assert (done["kind"], done["note"], done["undelivered"]) == ("redriven", 1, [[1, queue, 1]])
    ask(server, "PUT", f"/v0/topics/{queue}", {"type": "queue"})
    facts = redrive(server_url, dead, audit=audit).facts
    assert (facts["finished"], facts["matched"], facts["moved"], facts["failed"]) == (0, 2, 2, 0)
    assert values(server, queue) == [0, 1]
    assert redrive(server_url, dead, audit=audit).facts["matched"] == 0


def test_letters_whose_queue_is_gone_stay_and_are_counted(server: ServerProcess, server_url: str) -> None:
    queue, dead = queue_with_letters(server, ["a"])
    server.ask("DELETE", f"/v0/topics/{queue}")
    facts = redrive(server_url, dead, audit=fresh("audit")).facts
    assert (facts["matched"], facts["moved"], facts["failed"]) == (1, 0, 1)
    assert server.get(f"/v0/topics/{queue}")[0] == 404


def test_letters_of_the_broker_that_are_selected_are_moved_by_the_server(
    server: ServerProcess, server_url: str
) -> None:
    topic = fresh("runs")
    server.ask("POST", "/v1/topics", {"name": topic, "partitions": 1})
    for tenant in ("ta", "tb"):
        envelope = {"tenant_id": tenant, "retry_policy": {"max_attempts": 1}}
        status, answer = server.ask("POST", "/v1/produce", {"topic": topic, "value": tenant, "envelope": envelope})
        assert status == 200, answer
    fail_all(server, topic, 2)
    dead = f"@dlq.{topic}"
    assert redrive(server_url, dead, where="tenant = 'tb'", dry_run=True).facts["matched"] == 1
    facts = redrive(server_url, dead, where="tenant = 'tb' AND reason = 'boom' AND failed_group = 'g'").facts
    assert (facts["moved"], facts["failed"]) == (1, 0)
    assert [record["data"]["value"] for record in records(server, f"@{topic}")] == ["ta", "tb", "tb"]
    # Whoever else has redriven on this server is in the same topic.
    audited = [json.decode(value["value"]) for value in values(server, "@audit.redrive")]
    assert [note["dlq_topic"] for note in audited].count(f"dlq.{topic}") == 1
    assert redrive(server_url, dead, dry_run=True).tables["letters"] == [{"dlq": dead, "origin": topic, "letters": 1}]
    for moved in (1, 0):
        facts = redrive(server_url, dead, limit=1).facts
        assert (facts["matched"], facts["moved"], facts["failed"]) == (moved, moved, 0)
    assert [record["data"]["value"] for record in records(server, f"@{topic}")] == ["ta", "tb", "tb", "ta"]


def fail_all(server: ServerProcess, topic: str, count: int) -> None:
    """Take messages and give them back as failed, until all are dead."""
    connection = HTTPConnection(server.address, timeout=PATIENCE_S)
    connection.request("GET", f"/v1/consume?topic={topic}&group=g&owner=o&lease_ms=30000")
    stream = connection.getresponse()
    with Client(f"http://{server.address}") as client:
        for _ in range(count):
            message = json.decode(stream.readline())
            place = {"partition": message["partition"], "offset": message["offset"]}
            nack = {"topic": topic, "group": "g", "owner": "o", "reason": "boom", **place}
            client.request("POST", "/v1/nack", json=nack)
    connection.close()
    dead = f"/v0/topics/@dlq.{topic}"
    until(lambda: server.get(dead)[1].get("count"), lambda found: found == count)
