"""Topics, records and routers from the command line, against a real server."""

import signal
import subprocess
from pathlib import Path

import pytest
from msgspec import json

from tests.support.command_line import CommandLine, at_a_terminal
from tests.support.process import PATIENCE_S, ServerProcess, serving
from tests.support.waiting import until


def flat(value: object, above: str = "") -> set[str]:
    """The names of all fields, those below others as `field.below`."""
    if not isinstance(value, dict):
        return {above}
    return {name for key, below in value.items() for name in flat(below, f"{above}.{key}" if above else key)}


def lines(*values: object) -> bytes:
    return b"".join(json.encode(value) + b"\n" for value in values)


def test_a_topic_is_created_shown_listed_and_deleted(cli: CommandLine) -> None:
    made = cli.ok("topic", "create", "life", "--durability", "fsync", "--set", "priority=7", "--json").json
    assert (made["created"], made["config"]["durability"], made["config"]["priority"]) == (True, "fsync", 7)
    assert cli("topic", "create", "life").code == 1
    refused = cli("topic", "create", "life", "--replace")
    assert refused.code == 2
    assert "durability fsync -> disk, priority 7 -> None" in refused.err
    assert "--yes" in refused.err
    assert cli.ok("topic", "create", "life", "--replace", "--yes", "--json").json["created"] is False
    assert cli.ok("topic", "create", "life", "--replace", "--json").json["created"] is False
    shown = cli.ok("topic", "show", "life")
    told = cli.ok("topic", "show", "life", "--json").json
    assert {row[0] for row in shown.rows} == flat(told)
    listed = cli.ok("topic", "ls", "--prefix", "life")
    rows = cli.ok("topic", "ls", "--prefix", "life", "--json").json
    assert listed.rows[0] == list(rows[0])
    assert [row["topic"] for row in rows] == ["life"]
    assert cli("topic", "delete", "life").code == 2
    assert cli.ok("topic", "delete", "life", "--yes", "--json").json["deleted"] is True
    gone = cli("topic", "delete", "life", "--yes")
    assert (gone.code, gone.err.count("\n")) == (5, 1)
    assert cli("topic", "show", "life").code == 5


def test_set_changes_single_settings(cli: CommandLine) -> None:
    cli.ok("topic", "create", "changing", "--durability", "fsync", "--ttl-ms", "60000")
    before = cli.ok("topic", "show", "changing", "--json").json["config"]
    done = cli.ok("topic", "set", "changing", "--cap-records", "5", "--set", "priority=7", "--json").json
    assert done["config"] == before | {"cap_records": 5, "priority": 7}
    done = cli.ok("topic", "set", "changing", "--unset", "ttl-ms", "--unset", "priority", "--json").json
    assert done["config"] == before | {"cap_records": 5, "ttl_ms": 0}
    assert cli.ok("topic", "show", "changing", "--json").json["config"] == done["config"]
    shown = cli.ok("topic", "set", "changing", "--discard", "reject")
    assert ["config.discard", "reject"] in shown.rows


def test_a_replacement_lists_what_it_changes_and_asks_who_sits_at_a_terminal(cli: CommandLine) -> None:
    cli.ok("topic", "create", "replaced", "--durability", "fsync", "--ttl-ms", "60000")
    command = ["-m", "driftq", "topic", "create", "replaced", "--cap-records", "5", "--replace"]
    code, seen = at_a_terminal(command, typed=b"n\n", DRIFTQ_URL=cli.url)
    seen = " ".join(seen.split())
    assert (code, "nothing was changed" in seen) == (1, True)
    assert "ttl_ms 60000 -> 0" in seen
    assert "cap_records 0 -> 5" in seen
    assert "durability fsync -> disk" in seen
    assert cli.ok("topic", "show", "replaced", "--json").json["config"]["durability"] == "fsync"
    code, _ = at_a_terminal(command, typed=b"y\n", DRIFTQ_URL=cli.url)
    assert code == 0
    config = cli.ok("topic", "show", "replaced", "--json").json["config"]
    assert (config["durability"], config["ttl_ms"], config["cap_records"]) == ("disk", 0, 5)


def test_a_deletion_asks_who_sits_at_a_terminal(cli: CommandLine) -> None:
    cli.ok("topic", "create", "asked")
    command = ["-m", "driftq", "topic", "delete", "asked"]
    code, seen = at_a_terminal(command, typed=b"n\n", DRIFTQ_URL=cli.url)
    assert (code, "nothing was changed" in seen) == (1, True)
    code, seen = at_a_terminal(command, typed=b"y\n", DRIFTQ_URL=cli.url)
    assert (code, "Delete topic asked" in seen) == (0, True)
    assert cli("topic", "show", "asked").code == 5


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["topic", "create", "x", "--set", "nope=1"], 2, "nope"),
        (["topic", "create", "x", "--set", "nope"], 2, "NAME=VALUE"),
        (["topic", "create", "x", "--set", "nope=1", "--replace"], 2, "nope"),
        (["topic", "set", "x"], 2, "nothing to change"),
        (["topic", "set", "x", "--set", "nope=1"], 2, "nope"),
        (["topic", "set", "x", "--unset", "nope"], 2, "nope"),
        (["topic", "set", "x", "--ttl-ms", "5", "--unset", "ttl-ms"], 2, "both set and unset"),
        (["topic", "set", "absent", "--ttl-ms", "5"], 5, "absent"),
        (["topic", "create", "x", "--durability", "stone"], 2, "--durability"),
        (["topic", "create", "-x"], 2, "-x"),
        (["topic", "create", "_x"], 1, "name"),
        (["topic", "ls", "--url", "http://127.0.0.1:1"], 3, "driftq serve"),
        (["topic", "ls", "--url", "elsewhere"], 2, "http://"),
        (["topic", "ls", "--api-key-file", "/no/such/file"], 2, "/no/such/file"),
        (["read", "nothing"], 5, "topic ls"),
        (["read", "nothing", "--from-seq", "1", "--from-ts", "2"], 2, "--from-ts"),
        (["append", "x", "/no/such/file"], 6, "/no/such/file"),
        (["append", "x", "/"], 6, "/ cannot be read"),
        (["append", "absent", "--no-create", "{lines}"], 5, "topic ls"),
        (["group", "seek", "absent", "g", "--to", "latest", "--yes"], 5, "topic ls"),
        (["router", "delete", "nothing", "--yes"], 5, "router ls"),
        (["router", "delete", "nothing"], 2, "--yes"),
        (["router", "create", "self", "s", "s"], 1, "differ"),
    ],
)
def test_what_goes_wrong_is_one_line_and_a_code(
    cli: CommandLine, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    (tmp_path / "lines").write_bytes(lines(1))
    done = cli(*(argument.replace("{lines}", str(tmp_path / "lines")) for argument in arguments))
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1), done
    assert done.err.startswith("driftq: ")
    assert said in done.err


def test_lines_are_appended_and_read(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(lines({"a": 1}, [2], "drei", None) + b"\n5")
    done = cli.ok("append", "lines", str(tmp_path / "lines"), "--tag", "t", "--node", "n", "--json").json
    assert (done["records"], done["first_seq"], done["last_seq"], done["bad_lines"]) == (5, 1, 5, 0)
    read = [json.decode(line) for line in cli.ok("read", "lines", "--json").out.splitlines()]
    assert [record["data"] for record in read] == [{"a": 1}, [2], "drei", None, 5]
    assert {(record["$tag"], record["$node"]) for record in read} == {("t", "n")}
    shown = cli.ok("read", "lines", "--from-seq", "3", "--limit", "1").out
    assert shown.startswith("4  ")
    assert shown.endswith("Z  #t  @n  null\n")
    at = str(read[2]["$ts"])
    assert cli.ok("read", "lines", "--from-ts", at, "--json").out.count("\n") == sum(
        record["$ts"] >= read[2]["$ts"] for record in read
    )


def test_a_cursor_above_the_head_is_said_and_is_not_called_a_loss(cli: CommandLine, tmp_path: Path) -> None:
    given = tmp_path / "lines"
    given.write_bytes(lines(1, 2, 3))
    cli.ok("append", "short", str(given))
    with cli.start("read", "short", "--from-seq", "999") as command:
        out, err = command.communicate(timeout=30)
    assert (command.returncode, out, err) == (0, b"", b"topic short: cursor 999 is above the head 3\n")
    epoch = str(cli.ok("topic", "show", "short", "--json").json["epoch"])
    cli.ok("topic", "delete", "short", "--yes")
    given.write_bytes(lines(4, 5))
    cli.ok("append", "short", str(given))
    again = cli.ok("read", "short", "--from-seq", "1", "--epoch", epoch).out.splitlines()
    assert "deleted and created again" in again[0]
    assert "are gone" not in again[0]
    assert len(again) == 3


@pytest.mark.parametrize("bad", [b"{bad", b'"\\ud800"', b"1},{2", b"1 2", b"[" * 200 + b"]" * 200, b'"\xff"'])
def test_a_bad_line_is_told_by_number_and_nothing_before_it_is_lost(
    cli: CommandLine, tmp_path: Path, bad: bytes
) -> None:
    topic = f"bad-{abs(hash(bad))}"
    (tmp_path / "lines").write_bytes(lines(*range(1, 7)) + bad + b"\n" + lines(8, 9))
    done = cli("append", topic, str(tmp_path / "lines"), "--batch", "4", "--json")
    assert (done.code, done.json["records"], done.json["bad_lines"]) == (6, 6, 1), done
    assert "line 7 " in done.err
    read = cli.ok("read", topic, "--json").out.splitlines()
    assert [json.decode(line)["data"] for line in read] == [1, 2, 3, 4, 5, 6]


def test_bad_lines_are_left_out_on_request(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(lines(1) + b"{bad\n" + lines(3) + b'"\\ud800"\n' + lines(5))
    done = cli("append", "skipped", str(tmp_path / "lines"), "--skip-bad", "--json")
    assert (done.code, done.json["records"], done.json["bad_lines"]) == (6, 3, 2)
    assert "line 2 " in done.err
    assert "line 4 " in done.err
    read = cli.ok("read", "skipped", "--json").out.splitlines()
    assert [json.decode(line)["data"] for line in read] == [1, 3, 5]


def test_what_was_written_before_a_refusal_is_told(cli: CommandLine, tmp_path: Path) -> None:
    cli.ok("topic", "create", "full", "--cap-records", "25", "--discard", "reject")
    (tmp_path / "lines").write_bytes(lines(*range(40)))
    done = cli("append", "full", str(tmp_path / "lines"), "--batch", "10")
    assert done.code == 1
    assert done.err.endswith("; 20 records were written before that\n")
    assert done.err.count("\n") == 1


def test_an_append_that_is_interrupted_tells_what_is_written(cli: CommandLine) -> None:
    with cli.start("append", "broken-off", given=subprocess.PIPE) as command:
        assert command.stdin is not None
        assert command.stderr is not None
        command.stdin.write(lines(1, 2, 3))
        command.stdin.flush()
        until(lambda: cli("read", "broken-off").out.count("\n"), lambda found: found == 3)
        command.send_signal(signal.SIGINT)
        assert command.wait(PATIENCE_S) == 130
        assert command.stderr.read() == b"driftq: interrupted; 3 records were written before that\n"


def test_a_pipe_is_appended_in_order(cli: CommandLine) -> None:
    done = cli.apart("append", "piped", "--json", given=lines(*range(30_000)))
    assert (done.code, done.err, done.json["records"]) == (0, "", 30_000)
    read = cli.ok("read", "piped", "--json").out.splitlines()
    assert [json.decode(line)["data"] for line in read] == list(range(30_000))
    assert cli.apart("append", "piped", "-", "--json").json["records"] == 0


def test_an_append_at_a_terminal_has_a_bar_and_one_without_has_none(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(lines(*range(20_000)))
    command = ["append", "barred", str(tmp_path / "lines"), "--batch", "500"]
    code, seen = at_a_terminal(["-m", "driftq", *command], DRIFTQ_URL=cli.url)
    assert (code, "appending to barred" in seen) == (0, True)
    assert cli.ok(*command).err == ""


def test_tail_follows_over_a_restart_and_shows_what_is_lost(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with serving(tmp_path, "--port", "0") as first:
        first.wait_ready()
        port = first.address.rpartition(":")[2]
        first.ask("PUT", "/v0/topics/capped", {"cap_records": 3})
        first.ask("POST", "/v0/topics/capped", {"records": [{"data": number} for number in range(10)]})
        tail = CommandLine(first, capfdbinary).start("tail", "capped", "--from-seq", "0", "--limit", "5", "--json")
        assert tail.stdout is not None
        head = [json.decode(tail.stdout.readline()) for _ in range(4)]
        assert (head[0]["$type"], head[0]["gap_from"], head[0]["gap_to"]) == ("tombstone", 1, 7)
        assert [one["data"] for one in head[1:]] == [7, 8, 9]
        assert first.stop() == 0
    with serving(tmp_path, "--port", port) as second:
        second.wait_ready()
        second.ask("POST", "/v0/topics/capped", {"records": [{"data": "a"}, {"data": "b"}]})
        out, _ = tail.communicate(timeout=PATIENCE_S)
        assert [json.decode(line)["data"] for line in out.splitlines()] == ["a", "b"]
        assert tail.returncode == 0


def test_tail_begins_with_the_last_and_names_the_topics(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(lines(*range(20)))
    for topic in ("t1", "t2"):
        cli.ok("append", topic, str(tmp_path / "lines"))
    shown = cli.ok("tail", "t1", "-n", "2", "--limit", "2").out.splitlines()
    assert [line.split()[0] for line in shown] == ["19", "20"]
    both = cli.ok("tail", "t1", "t2", "-n", "1", "--limit", "2").out.splitlines()
    assert sorted(line.split()[0] for line in both) == ["t1", "t2"]


def test_tail_ends_when_no_topic_is_left_or_when_interrupted(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(lines(1))
    cli.ok("append", "ending", str(tmp_path / "lines"))
    left, stopped = cli.start("tail", "ending"), cli.start("tail", "ending")
    for tail in (left, stopped):
        assert tail.stdout is not None
        assert tail.stdout.readline()
    stopped.send_signal(signal.SIGINT)
    _, said = stopped.communicate(timeout=PATIENCE_S)
    assert (stopped.returncode, said) == (130, b"")
    cli.ok("topic", "delete", "ending", "--yes")
    _, said = left.communicate(timeout=PATIENCE_S)
    assert left.returncode == 5
    assert b"was deleted" in said


def test_a_reader_that_goes_away_is_no_news(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(lines(*range(5000)))
    cli.ok("append", "long", str(tmp_path / "lines"))
    with cli.start("read", "long", "--json") as read:
        assert read.stdout is not None
        assert read.stderr is not None
        assert read.stdout.readline()
        read.stdout.close()
        assert read.stderr.read() == b""
        assert read.wait(PATIENCE_S) == 1


def test_names_of_topics_are_completed(cli: CommandLine) -> None:
    for topic in ("whole-1", "whole-2"):
        cli.ok("topic", "create", topic)
    done = cli.apart(_DRIFTQ_COMPLETE="complete_bash", COMP_WORDS="driftq topic show whole", COMP_CWORD="3")
    assert done.out.split() == ["whole-1", "whole-2"]


def test_named_cursors_are_listed(cli: CommandLine, cli_server: ServerProcess) -> None:
    cli_server.ask("POST", "/v0/topics/cursored", {"records": [{"data": 1}, {"data": 2}]})
    cli_server.ask("PUT", "/v0/topics/cursored/cursors/reader", {"seq": 1})
    rows = cli.ok("topic", "cursors", "cursored", "--json").json
    assert [(row["cursor"], row["seq"], row["lag"]) for row in rows] == [("reader", 1, 1)]
    assert cli.ok("topic", "cursors", "cursored").rows[0] == list(rows[0])


def test_routers_are_created_listed_drawn_and_deleted(cli: CommandLine, cli_server: ServerProcess) -> None:
    cli.ok("router", "create", "r1", "ra", "rb", "--tag", "x*")
    cli.ok("router", "create", "r2", "rb", "rc", "--exactly-once")
    assert cli("router", "create", "r3", "rc", "ra").code == 1
    cli.ok("router", "create", "r3", "rc", "ra", "--allow-cycle")
    cli.ok("router", "create", "r4", "rb", "rd")
    cli_server.ask("POST", "/v0/topics/rb", {"records": [{"data": 1}]})
    cli.ok("read", "rc")
    rows = cli.ok("router", "ls", "--prefix", "r", "--json").json
    assert [row["router"] for row in rows] == ["r1", "r2", "r3", "r4"]
    assert cli.ok("router", "ls", "--source", "rb").rows[0] == list(rows[0])
    drawn = cli.ok("router", "graph", "ra").out.splitlines()
    assert drawn[0] == "ra"
    assert [line.split("── ")[1].split()[0] for line in drawn[1:]] == ["rb", "rc", "ra", "rd"]
    assert "exactly_once" in drawn[2]
    assert "(cycle)" in drawn[3]
    assert cli.ok("router", "graph").out.count("ra") == 2
    assert cli.ok("router", "graph", "--json").json == cli.ok("router", "ls", "--json").json
    assert cli.ok("router", "delete", "r4", "--yes", "--json").json["deleted"] is True
