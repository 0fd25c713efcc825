"""What a release wrote opens as it was, and is continued: its data directory and its backup.

`tests/pipeline/test_releases.py` does the same for its lake and for the checkpoint of a Spark query.
"""

from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from driftq.client import Client
from tests.golden.released import HERE, Expected, expected, flags, picture, releases, shows, unpack
from tests.support.command_line import apart
from tests.support.process import ServerProcess, serving

pytestmark = pytest.mark.slow

every_release = pytest.mark.parametrize("version", releases())


def seen(server: ServerProcess) -> dict[str, Any]:
    """What it shows, as the expectation is stored."""
    found: dict[str, Any] = json.decode(json.encode(picture(server)))
    return found


def missing(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Name the topics and other things that are not as they were."""
    topics = wanted["topics"]
    wrong = [name for name in topics if not shows(found["topics"].get(name), topics[name])]
    return wrong + [name for name in wanted if name != "topics" and not shows(found[name], wanted[name])]


def continue_all(client: Client, orders: int) -> None:
    """Write, claim, ack and consume where the release stopped."""
    assert client.topic("orders").append("continued").first_seq == orders + 1
    jobs = client.topic("jobs").claim(node="later", max=10).claimed
    assert [job.data for job in jobs] == ["job 2", "job 3", "job 4"]
    assert client.topic("jobs").ack(jobs, node="later").acked == 3
    open_values = {"value 0", "value 1"}
    for message in client.broker.consume("tasks", group="agents", owner="later"):
        open_values.remove(message.value)
        client.broker.ack(message)
        if not open_values:
            break


def test_0_1_0_has_golden_files() -> None:
    assert "0.1.0" in releases()
    assert [path.stem.removesuffix(".tar") for path in sorted(HERE.glob("*.tar.xz"))] == releases()


@every_release
def test_a_data_directory_of_a_release_opens_and_is_continued(version: str, tmp_path: Path) -> None:
    """It was killed: there are a checkpoint, a log after it, hot and cold segments."""
    unpack(version, tmp_path)
    wanted: Expected = expected(version)
    with serving(tmp_path, *flags(tmp_path)) as server:
        server.wait_ready()
        assert not missing(seen(server), wanted.data)
        with Client(f"http://{server.address}") as client:
            continue_all(client, wanted.data["topics"]["orders"]["state"]["head_seq"])
        assert server.stop() == 0
    with serving(tmp_path, *flags(tmp_path)) as server:
        server.wait_ready()
        found = seen(server)
        assert server.stop() == 0
    assert found["topics"]["orders"]["records"][-1]["data"] == "continued"
    assert found["topics"]["jobs"]["state"]["count"] == 0
    assert {part["lag"] for part in found["groups"][0]["partitions"]} == {0}
    verified = apart("verify", "--data-dir", tmp_path / "data", "--cold-dir", tmp_path / "cold")
    assert verified.code == 0, verified.out + verified.err


@every_release
def test_a_backup_of_a_release_is_restored_and_continued(version: str, tmp_path: Path) -> None:
    """The next backup goes into the same directory; both can be restored."""
    unpack(version, tmp_path)
    wanted = expected(version)
    first, second = tmp_path / "first", tmp_path / "second"
    restore(tmp_path, first)
    with serving(first, *flags(first), "--backup-dir", str(tmp_path / "backups")) as server:
        server.wait_ready()
        assert not missing(seen(server), wanted.backup)
        with Client(f"http://{server.address}") as client:
            client.topic("orders").append("continued")
        done = apart("backup", "--url", f"http://{server.address}")
        assert done.code == 0, done.err
    restore(tmp_path, second)
    with serving(second, *flags(second)) as server:
        server.wait_ready()
        assert seen(server)["topics"]["orders"]["records"][-1]["data"] == "continued"


def restore(source: Path, into: Path) -> None:
    done = apart(
        "restore", "--from", source / "backups", "--data-dir", into / "data", "--cold-dir", into / "cold", "--json"
    )
    assert done.code == 0, done.err
