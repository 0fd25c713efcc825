"""Queues, groups, runs and dead letters from the command line, and the doctor and the bench, against a real server."""

import signal
from pathlib import Path

import pytest
from msgspec import json

from driftq import __version__
from tests.acceptance.broker_client import Client
from tests.support.command_line import CommandLine
from tests.support.process import PATIENCE_S, ServerProcess, serving
from tests.support.waiting import until


@pytest.fixture
def broker(cli_server: ServerProcess) -> Client:
    return Client(cli_server.address)


def jobs(server: ServerProcess, queue: str, *values: object, **config: object) -> None:
    """A queue with these jobs."""
    server.ask("PUT", f"/v0/topics/{queue}", {"type": "queue", **config})
    if values:
        server.ask("POST", f"/v0/topics/{queue}", {"records": [{"data": value} for value in values]})


# --- queues -------------------------------------------------------------------------------------------------------


def test_jobs_are_shown_taken_and_settled(cli: CommandLine, cli_server: ServerProcess) -> None:
    jobs(cli_server, "q", "a", "b", "c")
    shown = cli.ok("queue", "show", "q")
    told = cli.ok("queue", "show", "q", "--json").json
    assert [row[0] for row in shown.rows] == list(told)
    assert (told["ready"], told["in_flight"], told["dead_lettered"]) == (3, 0, 0)
    taken = cli.ok("queue", "claim", "q", "--max", "2", "--json").json
    assert [(job["$seq"], job["data"], job["deliveries"]) for job in taken] == [(1, "a", 1), (2, "b", 1)]
    assert cli.ok("queue", "ack", "q", "1", "--lease-id", taken[0]["lease_id"], "--json").json["acked"] == 1
    assert cli.ok("queue", "nack", "q", "2", "--json").json["nacked"] == 1
    again = cli.ok("queue", "claim", "q")
    assert again.rows[0] == list(taken[0])
    assert again.rows[1][0] == "2"


def test_a_job_that_is_not_held_is_told(cli: CommandLine, cli_server: ServerProcess) -> None:
    jobs(cli_server, "held", "a")
    done = cli("queue", "ack", "held", "1")
    assert (done.code, done.err.count("\n")) == (5, 1)
    assert cli("queue", "ack", "held", "1", "2", "--lease-id", "lease_1").code == 2
    cli.ok("queue", "claim", "held", "--node", "other")
    assert cli("queue", "nack", "held", "1").code == 5


def test_what_is_no_queue_has_no_jobs(cli: CommandLine) -> None:
    cli.ok("topic", "create", "log")
    for command in (("show", "log"), ("claim", "log")):
        done = cli("queue", *command)
        assert (done.code, done.out) == (1, "")
        assert "--type queue" in done.err


# --- groups and runs ----------------------------------------------------------------------------------------------


def test_groups_are_listed_and_put_elsewhere(cli: CommandLine, broker: Client) -> None:
    broker.create_topic("orders", 2)
    for number in range(6):
        broker.produce("orders", str(number), key=f"k{number}")
    with broker.consume("orders", "g", "o") as items:
        for _ in range(6):
            broker.ack("orders", "g", "o", next(items))
    rows = cli.ok("group", "ls", "orders", "--json").json
    assert [(row["partition"], row["lag"]) for row in rows] == [(0, 0), (1, 0)]
    assert sum(row["done"] for row in rows) == 6
    assert cli.ok("group", "ls", "--group", "g").rows[0] == list(rows[0])
    assert cli("group", "seek", "orders", "g", "--to", "earliest").code == 2
    tried = cli.ok("group", "seek", "orders", "g", "--to", "earliest", "--dry-run", "--json").json
    assert sum(row["done"] for row in cli.ok("group", "ls", "orders", "--json").json) == 6
    moved = cli.ok("group", "seek", "orders", "g", "--to", "earliest", "--yes", "--force", "--json").json
    assert moved == tried
    assert sum(row["lag"] for row in cli.ok("group", "ls", "orders", "--json").json) == 6
    cli.ok("group", "seek", "orders", "g", "--to", "@1", "--yes", "--partition", "1")
    cli.ok("group", "seek", "orders", "new", "--to", "3", "--yes")
    assert cli("group", "seek", "orders", "g", "--to", "nowhere", "--yes").code == 2
    assert cli("group", "seek", "none", "g", "--to", "latest", "--yes").code == 5


def test_a_run_is_a_tree_of_its_steps(cli: CommandLine, broker: Client) -> None:
    broker.create_topic("steps")
    for step, parent in (("plan", ""), ("fetch", "plan"), ("rank", "fetch"), ("write", "plan"), ("stray", "gone")):
        broker.produce("steps", "x", run_id="r1", step_id=step, parent_step_id=parent, tenant_id="t")
    told = cli.ok("run", "show", "r1", "--tenant", "t", "--json").json
    assert [step["step_id"] for step in told["steps"]] == ["plan", "fetch", "rank", "write", "stray"]
    drawn = cli.ok("run", "show", "r1").out.splitlines()
    depth = {line.split("── ")[1].split()[0]: line.index("── ") // 4 for line in drawn[1:]}
    assert depth == {"plan": 0, "fetch": 1, "rank": 2, "write": 1, "stray": 0}
    assert all(f"{field} " in drawn[1] for field in ("topic", "partition", "offset", "ts", "attempts"))
    gone = cli("run", "show", "nothing")
    assert (gone.code, gone.err.count("\n")) == (5, 1)


# --- dead letters -------------------------------------------------------------------------------------------------


def test_dead_letters_of_the_broker_are_shown_and_redriven(cli: CommandLine, broker: Client) -> None:
    broker.create_topic("fails")
    for number in range(3):
        broker.produce("fails", f"v{number}", tenant_id=f"t{number}", retry_policy={"max_attempts": 1})
    with broker.consume("fails", "g", "o") as items:
        for _ in range(3):
            broker.nack("fails", "g", "o", next(items), "no luck")
    wanted = {"source": "fails", "dead_letter": "dlq.fails", "api": "v1", "letters": 3}
    until(lambda: _letters(cli), lambda listed: wanted in listed)
    rows = cli.ok("dlq", "show", "fails", "--json").json
    assert [(row["value"], row["last_error"], row["redriven"]) for row in rows] == [
        ("v0", "no luck", False),
        ("v1", "no luck", False),
        ("v2", "no luck", False),
    ]
    assert cli.ok("dlq", "show", "fails").rows[0] == list(rows[0])
    assert cli("dlq", "redrive", "fails").code == 2
    assert cli.ok("dlq", "redrive", "fails", "--dry-run", "--json").json["matched"] == 3
    done = cli.ok("dlq", "redrive", "fails", "--tenant", "t1", "--yes", "--json").json
    assert (done["state"], done["matched"], done["moved"], done["failed"]) == ("done", 1, 1, 0)
    assert [row["redriven"] for row in cli.ok("dlq", "show", "fails", "--json").json] == [False, True, False]
    with broker.consume("fails", "g", "o") as items:
        assert next(items).value == "v1"


def test_dead_letters_of_a_queue_are_shown_and_put_back(cli: CommandLine, cli_server: ServerProcess) -> None:
    jobs(cli_server, "poor", *range(4), max_deliveries=1, dead_letter="poor.dead")
    cli.ok("queue", "claim", "poor", "--max", "4")
    cli.ok("queue", "nack", "poor", "1", "2", "3", "4")
    assert cli.ok("queue", "claim", "poor", "--json").json == []
    assert {"source": "poor", "dead_letter": "poor.dead", "api": "v0", "letters": 4} in _letters(cli)
    rows = cli.ok("dlq", "show", "poor", "--json").json
    assert (rows[0]["data"], rows[0]["deliveries"], rows[0]["source_seq"]) == (0, "1", "1")
    assert cli("dlq", "redrive", "poor", "--tenant", "t", "--yes").code == 2
    assert cli.ok("dlq", "redrive", "poor", "--dry-run", "--json").json["matched"] == 4
    done = cli.ok("dlq", "redrive", "poor", "--limit", "3", "--yes", "--json").json
    assert (done["matched"], done["moved"]) == (3, 3)
    back = cli.ok("queue", "claim", "poor", "--max", "9", "--json").json
    assert [job["data"] for job in back] == [0, 1, 2]
    assert [row["data"] for row in cli.ok("dlq", "show", "poor", "--json").json] == [3]


def test_what_has_no_dead_letters_is_told(cli: CommandLine) -> None:
    done = cli("dlq", "show", "nobody")
    assert (done.code, done.err.count("\n")) == (5, 1)


def _letters(cli: CommandLine) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = cli.ok("dlq", "ls", "--json").json
    return rows


# --- the server as a whole ----------------------------------------------------------------------------------------


def test_the_doctor_says_what_it_found(cli: CommandLine, tmp_path: Path) -> None:
    rows = cli.ok("doctor", "--data-dir", str(tmp_path / "not/yet"), "--json").json
    found = {row["check"]: row for row in rows}
    assert {"python", "driftq", "disk space", "fsync", "clock", "file handles", "java", "server"} <= found.keys()
    assert found["server"]["status"] == "ok"
    assert __version__ in found["server"]["found"]
    assert "p99" in found["fsync"]["found"]
    assert all(row["advice"] for row in rows if row["status"] != "ok")
    assert cli.ok("doctor", "--data-dir", str(tmp_path)).rows[0] == list(rows[0])
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_fails_when_the_server_that_was_named_is_not_there(cli: CommandLine, tmp_path: Path) -> None:
    done = cli("doctor", "--data-dir", str(tmp_path), "--url", "http://127.0.0.1:1", "--json")
    assert (done.code, done.err.count("\n")) == (1, 1)
    server = done.json[-1]
    assert (server["check"], server["status"]) == ("server", "fail")
    assert "driftq serve" in server["advice"]


def test_the_bench_tells_rates_and_latencies_and_leaves_nothing(cli: CommandLine) -> None:
    rows = cli.ok("bench", "--seconds", "0.2", "--connections", "2", "--batch", "10", "--json").json
    assert [row["workload"] for row in rows] == ["write_10", "write_1", "write_1_alone", "read_1000"]
    assert all(row["records_per_s"] > 0 and 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"] for row in rows)
    assert cli.ok("topic", "ls", "--prefix", "bench-", "--json").json == []
    assert cli("bench", "--url", "https://127.0.0.1:1").code == 2


def test_a_key_comes_from_the_environment_or_a_file_and_is_never_shown(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DRIFTQ_API_KEY", raising=False)
    with serving(tmp_path, DRIFTQ_API_KEYS="sesame:rw,master") as guarded:
        guarded.wait_ready()
        monkeypatch.setenv("DRIFTQ_URL", f"http://{guarded.address}")
        cli = CommandLine(guarded, capfdbinary)
        assert cli("topic", "ls").code == 4
        (tmp_path / "key").write_text("master\n", encoding="utf-8")
        cli.ok("topic", "create", "t", "--api-key-file", str(tmp_path / "key"))
        monkeypatch.setenv("DRIFTQ_API_KEY", "wrong")
        refused = cli("topic", "ls")
        assert (refused.code, refused.err.count("\n")) == (4, 1)
        monkeypatch.setenv("DRIFTQ_API_KEY", "sesame")
        cli.ok("topic", "ls")
        refused = cli("topic", "create", "u")
        assert refused.code == 4
        cli.ok("bench", "--seconds", "0.1", "--api-key-file", str(tmp_path / "key"))
        assert not {"sesame", "master", "wrong"} & set(refused.err.split())
        (tmp_path / "key").write_text("\n", encoding="utf-8")
        assert cli("topic", "ls", "--api-key-file", str(tmp_path / "key")).code == 2


# --- a command for each job ---------------------------------------------------------------------------------------

STORY = 'echo "$DRIFTQ_JOB_SEQ $DRIFTQ_JOB_TAG $DRIFTQ_JOB_DELIVERIES $(cat)" >> log'


def test_a_command_runs_for_each_job_and_its_exit_code_decides(
    cli: CommandLine, cli_server: ServerProcess, tmp_path: Path
) -> None:
    jobs(cli_server, "work", {"n": 1}, {"n": 2}, max_deliveries=5, dead_letter="work.dead")
    story = f"cd {tmp_path}; {STORY}; [ $DRIFTQ_JOB_SEQ = 1 ] || [ $DRIFTQ_JOB_DELIVERIES = 2 ]"
    done = cli.apart("queue", "work", "work", "--until-empty", "--retry-ms", "0", "--json", "--", "sh", "-c", story)
    assert (done.code, done.json["acked"], done.json["retried"]) == (0, 2, 1), done
    assert "job 2: sh exited with 1, delivery 1" in done.err
    log = sorted((tmp_path / "log").read_text(encoding="utf-8").splitlines())
    assert log == ['1  1 {"n":1}', '2  1 {"n":2}', '2  2 {"n":2}']
    assert cli.ok("queue", "show", "work", "--json").json["count"] == 0


def test_a_command_may_give_a_job_up(cli: CommandLine, cli_server: ServerProcess) -> None:
    jobs(cli_server, "hopeless", "a", "b", max_deliveries=5, dead_letter="hopeless.dead")
    done = cli.apart(
        "queue", "work", "hopeless", "--limit", "1", "--give-up-code", "3", "--json", "--", "sh", "-c", "exit 3"
    )
    assert (done.code, done.json["dead_lettered"]) == (0, 1), done
    assert [row["data"] for row in cli.ok("dlq", "show", "hopeless", "--json").json] == ["a"]
    assert cli.ok("queue", "show", "hopeless", "--json").json["count"] == 1


def test_a_worker_that_is_stopped_lets_its_command_finish(
    cli: CommandLine, cli_server: ServerProcess, tmp_path: Path
) -> None:
    jobs(cli_server, "slow", "a", "b")
    go = tmp_path / "go"
    story = f"cd {tmp_path}; echo x >> began; until [ -e go ]; do sleep 0.02; done; echo x >> ended"
    with cli.start("queue", "work", "slow", "--json", "--", "sh", "-c", story) as worker:
        until(lambda: (tmp_path / "began").exists(), bool)
        worker.send_signal(signal.SIGTERM)
        go.touch()
        out, _ = worker.communicate(timeout=PATIENCE_S)
    assert (worker.returncode, json.decode(out)["acked"]) == (0, 1)
    assert (tmp_path / "ended").read_text(encoding="utf-8") == "x\n"
    assert cli.ok("queue", "show", "slow", "--json").json["ready"] == 1


def test_work_needs_a_queue_and_a_command(cli: CommandLine) -> None:
    cli.ok("topic", "create", "no-queue")
    assert cli("queue", "work", "no-queue", "--", "true").code == 1
    assert cli("queue", "work", "nowhere", "--", "true").code == 5
    assert cli("queue", "work", "no-queue", "--", "/no/such/command").code == 2
    assert cli("queue", "work", "no-queue").code == 2


def test_who_may_give_up_needs_a_place_for_dead_letters(cli: CommandLine) -> None:
    """Its jobs would be run again and again, each as long as a lease behind the one before."""
    cli.ok("topic", "create", "no-way-out", "--type", "queue")
    done = cli("queue", "work", "no-way-out", "--until-empty", "--give-up-code", "3", "--", "sh", "-c", "exit 3")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "dead_letter" in done.err
