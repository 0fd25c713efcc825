"""A cold directory that goes away under a real server and comes back: nothing is lost, and readers may retry."""

import shlex
import signal
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from msgspec import json

from tests.support.command_line import apart
from tests.support.process import PATIENCE_S, ServerProcess, serving
from tests.support.waiting import until

SEGMENTS, RECORDS = 5, 1000


def diff(server: ServerProcess, from_seq: int) -> tuple[int, str | None, dict[str, Any]]:
    """Return status, `Retry-After` and body of one diff."""
    connection = HTTPConnection(server.address, timeout=PATIENCE_S)
    try:
        body = json.encode({"from_seq": from_seq, "limit": RECORDS})
        connection.request("POST", "/v0/topics/t/diff", body, {"content-type": "application/json"})
        reply = connection.getresponse()
        return reply.status, reply.getheader("retry-after"), json.decode(reply.read(), type=dict[str, Any])
    finally:
        connection.close()


def everything(server: ServerProcess) -> list[int]:
    """Return the seqs of all records, read from the first on without a tombstone."""
    seqs: list[int] = []
    caught_up = False
    while not caught_up:
        status, _, page = diff(server, seqs[-1] if seqs else 0)
        assert (status, page.get("tombstone")) == (200, None), page
        seqs += [record["$seq"] for record in page["records"]]
        caught_up = page["caught_up"]
    return seqs


def tiers(server: ServerProcess) -> list[str]:
    """Return the tier of every segment."""
    return [row["tier"] for row in server.ask("GET", "/v0/topics/t/segments")[1]["segments"]]


def test_a_cold_directory_that_is_away_for_one_read_loses_nothing(tmp_path: Path) -> None:
    """The reproduction of a review: rename the directory, read, rename it back, read, restart, read.

    proves: G-IO-8, G-SEG-6; row: F-COLD-1
    """
    cold = tmp_path / "cold"
    flags = ("--cold-dir", str(cold), "--segment-max-events", str(RECORDS), "--hot-retain-segments", "0")
    with serving(tmp_path, *flags) as server:
        server.wait_ready()
        for _ in range(SEGMENTS):
            status, _ = server.ask("POST", "/v0/topics/t", {"records": [{"data": n} for n in range(RECORDS)]})
            assert status in (200, 201)
        until(lambda: tiers(server), lambda found: found == ["cold"] * SEGMENTS)
        files = {path: path.read_bytes() for path in cold.glob("topics/*/*")}
        cold.rename(tmp_path / "away")
        cold.mkdir()
        status, retry_after, body = diff(server, 0)
        assert (status, retry_after, body["error"]["code"]) == (503, "1", "cold_unavailable")
        assert server.get("/v0/topics/t")[1]["count"] == SEGMENTS * RECORDS
        cold.rename(tmp_path / "empty")
        (tmp_path / "away").rename(cold)
        assert everything(server) == list(range(1, SEGMENTS * RECORDS + 1))
        assert server.stop(signal.SIGTERM) == 0
    with serving(tmp_path, *flags) as server:
        server.wait_ready()
        assert everything(server) == list(range(1, SEGMENTS * RECORDS + 1))
        assert server.stop(signal.SIGTERM) == 0
    assert {path: path.read_bytes() for path in cold.glob("topics/*/*")} == files


def test_a_file_that_is_gone_refuses_the_start_until_its_loss_is_accepted(tmp_path: Path) -> None:
    """proves: G-SEG-8; row: F-COLD-4"""
    cold = tmp_path / "cold"
    flags = ("--cold-dir", str(cold), "--segment-max-events", str(RECORDS), "--hot-retain-segments", "0")
    with serving(tmp_path, *flags) as server:
        server.wait_ready()
        for _ in range(2):
            server.ask("POST", "/v0/topics/t", {"records": [{"data": n} for n in range(RECORDS)]})
        until(lambda: tiers(server), lambda found: found == ["cold"] * 2)
        assert server.stop(signal.SIGTERM) == 0
    (cold / "topics" / "00000001" / "seg-0000000000000001.parquet").unlink()
    with serving(tmp_path, *flags) as server:
        code, errors = server.ended()
        assert code == 1
        printed = f"driftq repair --accept-loss t 1..1000 --data-dir {server.data_dir} --cold-dir {cold}"
        assert f"`{printed}`" in errors
    directories = ("--data-dir", str(server.data_dir), "--cold-dir", str(cold))
    assert apart("repair", "--accept-loss", "t", "1..2000", *directories).code == 1
    assert apart("repair", "--accept-loss", "t", "all", *directories).code == 2
    accepted = apart(*shlex.split(printed)[1:], "--by", "ada", "--json").json
    assert (accepted["topic"], accepted["first_seq"], accepted["last_seq"], accepted["by"]) == ("t", 1, 1000, "ada")
    with serving(tmp_path, *flags) as server:
        server.wait_ready()
        status, _, page = diff(server, 0)
        assert (status, page["tombstone"]["reason"], page["tombstone"]["gap_to"]) == (200, "corruption", 1000)
        assert page["records"][0]["$seq"] == 1001
        assert server.stop(signal.SIGTERM) == 0
    told = apart("doctor", "--data-dir", str(server.data_dir), "--json").json
    assert any(row["check"] == "accepted loss" and "by ada" in row["found"] for row in told)
