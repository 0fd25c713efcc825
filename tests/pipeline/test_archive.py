"""Archive: what topics have is in the lake, each record once, whatever happened on the way."""

import datetime as dt
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec import json

from driftq.client import Client
from driftq.pipeline import history, read_lake, run_job
from driftq.pipeline.errors import PipelineError
from driftq.pipeline.lake.archive_check import ArchiveFinding, verify
from driftq.pipeline.lake.delta_tables import Lake
from driftq.pipeline.lake.lake_owner import claim
from driftq.pipeline.lake.server_topics import ServerTopics
from driftq.pipeline.lake.table_layout import BAD_RECORDS, ERASURES, GAPS
from driftq.pipeline.runs.launcher import RunSettings
from tests.pipeline.jobs import RunJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def client(server_url: str) -> Iterator[Client]:
    with Client(server_url) as made:
        yield made


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def found(lake: Lake, client: Client, *topics: str) -> list[ArchiveFinding]:
    return verify(lake, ServerTopics(client), topics or None)


def verdicts(lake: Lake, client: Client) -> dict[str, str]:
    return {finding.topic: finding.verdict for finding in found(lake, client)}


def fill(client: Client, topic: str, first: int, last: int) -> None:
    client.topic(topic).write(
        [{"data": {"n": n}, "tag": f"t{n % 3}", "meta": {"m": str(n)}} for n in range(first, last)]
    )


def test_records_of_both_apis_are_archived_once_and_as_they_are(job: RunJob, client: Client, lake: Lake) -> None:
    fill(client, "archive-plain", 0, 500)
    client.broker.create_topic("archive-plain", 2)
    for number in range(10):
        client.broker.produce("archive-plain", f"value {number}", key=str(number), keyed=False)
    topics = ["archive-plain", "@archive-plain"]
    first = job("archive", topics=topics, lake=str(lake.root), max_records=200)
    assert (first.facts["rows"], first.facts["bad_records"], first.facts["gaps"]) == (510, 0, 0)
    assert first.facts["batches"] > 1
    fill(client, "archive-plain", 500, 600)
    assert job("archive", topics=topics, lake=str(lake.root)).facts["rows"] == 100
    assert verdicts(lake, client) == dict.fromkeys(topics, "equal")
    rows = lake.topic("archive-plain").read(["seq", "tag", "meta", "data"]).sort_by("seq").to_pylist()
    assert rows[7] == {"seq": 8, "tag": "t1", "meta": [("m", "7")], "data": '{"n":7}'}
    message = lake.topic("@archive-plain").read(["seq", "data"]).sort_by("seq").to_pylist()[3]
    assert json.decode(message["data"]) == {"key": "3", "value": "value 3"}
    assert lake.table("bad_records", BAD_RECORDS).read().num_rows == 0


def test_a_batch_whose_commit_spark_did_not_note_is_not_written_again(job: RunJob, client: Client, lake: Lake) -> None:
    """As after a kill between the commit of the table and that of Spark."""
    fill(client, "archive-again", 0, 300)
    job("archive", topics=["archive-again"], lake=str(lake.root), max_records=100)
    (checkpoint,) = (lake.root / "_checkpoints").iterdir()
    commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    (checkpoint / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    fill(client, "archive-again", 300, 350)
    job("archive", topics=["archive-again"], lake=str(lake.root))
    assert verdicts(lake, client) == {"archive-again": "equal"}


def test_a_lost_checkpoint_repeats_nothing(job: RunJob, client: Client, lake: Lake) -> None:
    fill(client, "archive-lost", 0, 200)
    job("archive", topics=["archive-lost"], lake=str(lake.root))
    shutil.rmtree(lake.root / "_checkpoints")
    fill(client, "archive-lost", 200, 260)
    assert job("archive", topics=["archive-lost"], lake=str(lake.root)).facts["rows"] == 60
    assert verdicts(lake, client) == {"archive-lost": "equal"}


def test_topics_are_archived_once_however_they_are_chosen(job: RunJob, client: Client, lake: Lake) -> None:
    one, both = ["archive-one"], ["archive-one", "archive-two"]
    fill(client, "archive-one", 0, 10)
    with pytest.raises(PipelineError, match="no topic 'archive-two'"):
        job("archive", topics=both, lake=str(lake.root))
    assert job("archive", topics=one, lake=str(lake.root)).facts["rows"] == 10
    fill(client, "archive-two", 0, 5)
    fill(client, "archive-one", 10, 20)
    assert job("archive", topics=both, lake=str(lake.root)).facts["rows"] == 10 + 5
    fill(client, "archive-one", 20, 25)
    assert job("archive", topics=one, lake=str(lake.root)).facts["rows"] == 5
    assert verdicts(lake, client) == dict.fromkeys(both, "equal")


def test_another_server_is_not_archived_into_the_same_lake(job: RunJob, client: Client, lake: Lake) -> None:
    fill(client, "archive-server", 0, 1)
    claim(lake, "0" * 32)
    with pytest.raises(PipelineError, match="use another --lake"):
        job("archive", topics=["archive-server"], lake=str(lake.root))
    assert lake.archives() == []


def test_what_was_lost_before_it_could_be_read_stands_in_gaps(job: RunJob, client: Client, lake: Lake) -> None:
    client.topic("archive-gaps").create(cap_records=50)
    fill(client, "archive-gaps", 0, 20)
    job("archive", topics=["archive-gaps"], lake=str(lake.root))
    for first in range(20, 220, 20):
        fill(client, "archive-gaps", first, first + 20)
    job("archive", topics=["archive-gaps"], lake=str(lake.root))
    assert verdicts(lake, client) == {"archive-gaps": "equal"}
    lost = lake.table("gaps", GAPS).read(["topic", "gap_from", "gap_to", "reason"]).to_pylist()
    earliest = client.topic("archive-gaps").info().earliest_seq
    assert lost == [{"topic": "archive-gaps", "gap_from": 21, "gap_to": earliest - 1, "reason": "cap"}]


def test_topics_of_a_pattern_share_a_table_and_one_that_was_made_again_is_told_apart(
    job: RunJob, client: Client, lake: Lake
) -> None:
    for number in range(3):
        fill(client, f"archive-many.{number}", 0, 10 * (number + 1))
    chosen = {"topics": ["archive-many.*"], "lake": str(lake.root), "table": "Many of them"}
    assert job("archive", **chosen).facts["rows"] == 60
    with pytest.raises(PipelineError, match=r"'archive-many\.1' in tables/~4dany"):
        job("archive", topics=["archive-many.1"], lake=str(lake.root))
    ended = client.topic("archive-many.2").segments().epoch
    client.topic("archive-many.2").delete()
    fill(client, "archive-many.2", 0, 5)
    fill(client, "archive-many.3", 0, 7)
    job("archive", **chosen)
    assert lake.shared("Many of them").read().num_rows == 60 + 5 + 7
    assert verdicts(lake, client) == {f"archive-many.{number}": "equal" for number in range(4)}
    notice = lake.table("gaps", GAPS).read(["topic", "epoch", "gap_from", "reason"]).to_pylist()
    assert notice == [{"topic": "archive-many.2", "epoch": ended, "gap_from": 31, "reason": "recreated"}]


def test_a_rebuilt_table_has_what_the_topic_has_and_what_only_the_lake_has(
    job: RunJob, client: Client, lake: Lake
) -> None:
    client.topic("rebuilt").create(cap_records=30)
    for first in (0, 20):
        fill(client, "rebuilt", first, first + 20)
        job("archive", topics=["rebuilt"], lake=str(lake.root))
    for file in lake.topic("rebuilt").files()[1:]:
        Path(file).write_bytes(b"PAR1 not really PAR1")
    assert verdicts(lake, client) == {"rebuilt": "differs"}
    with pytest.raises(PipelineError, match="has a cap or a TTL"):
        job("archive", rebuild="rebuilt", lake=str(lake.root))
    client.topic("rebuilt").update(cap_records=0)
    facts = job("archive", rebuild="rebuilt", lake=str(lake.root)).facts
    assert facts["unreadable_files"] == 1
    assert verdicts(lake, client) == {"rebuilt": "equal"}
    fill(client, "rebuilt", 40, 45)
    job("archive", topics=["rebuilt"], lake=str(lake.root))
    assert verdicts(lake, client) == {"rebuilt": "equal"}
    mark = lake.rebuild_mark("rebuilt")
    assert not mark.exists()
    mark.touch()
    fill(client, "rebuilt", 45, 46)
    with pytest.raises(PipelineError, match="is being rebuilt, or a rebuild was interrupted"):
        job("archive", topics=["rebuilt"], lake=str(lake.root))
    shutil.rmtree(lake.topic("rebuilt").path)
    assert verdicts(lake, client) == {"rebuilt": "differs"}
    job("archive", rebuild="rebuilt", lake=str(lake.root))
    assert verdicts(lake, client) == {"rebuilt": "equal"}


def test_an_erased_tag_is_gone_from_topic_and_lake_and_noted(
    job: RunJob, client: Client, lake: Lake, server_url: str, tmp_path: Path
) -> None:
    client.topic("forgets").create(cap_records=20)
    for first in (0, 15):
        fill(client, "forgets", first, first + 15)
        job("archive", topics=["forgets"], lake=str(lake.root))
    settings = RunSettings(server=server_url, state_dir=str(tmp_path / "state"))
    result = run_job("erase", tag="t1", topics=["forgets"], lake=str(lake.root), settings=settings)
    (erased,) = result.tables["erased"]
    assert (erased["topic"], erased["lake_rows"]) == ("forgets", 10)
    assert 0 < erased["live_records"] < 10
    assert {row["tag"] for row in lake.topic("forgets").read(["tag"]).to_pylist()} == {"t0", "t2"}
    (note,) = lake.table("erasures", ERASURES).read().to_pylist()
    assert (note["selector"], note["lake_rows"], note["live_records"]) == ("tag = t1", 10, erased["live_records"])
    assert verdicts(lake, client) == {"forgets": "equal"}
    assert run_job("compact", lake=str(lake.root), retain_hours=0, settings=settings).facts["files_after"] == 1
    assert verdicts(lake, client) == {"forgets": "equal"}
    fill(client, "forgets", 30, 40)
    job("archive", topics=["forgets"], lake=str(lake.root))
    assert verdicts(lake, client) == {"forgets": "equal"}


def test_the_lake_is_a_dataframe_and_with_the_live_topic_a_history(
    spark: "SparkSession", job: RunJob, client: Client, lake: Lake
) -> None:
    client.topic("past").create(cap_records=20)
    for first in (0, 15):
        fill(client, "past", first, first + 15)
        job("archive", topics=["past"], lake=str(lake.root))
    fill(client, "past", 30, 35)
    rows = read_lake(spark, lake.root, "past")
    assert sorted(row.seq for row in rows.collect()) == list(range(1, 31))
    few = read_lake(spark, lake.root, "past", from_seq=20, to_seq=25)
    assert sorted(row.seq for row in few.collect()) == list(range(20, 26))
    assert len(few.inputFiles()) == 1
    assert read_lake(spark, lake.root, "past", to_day=dt.date(2000, 1, 1)).count() == 0
    whole = sorted((row.seq, row.tag, row.data) for row in history(spark, lake.root, "past").collect())
    assert whole == [(n + 1, f"t{n % 3}", f'{{"n":{n}}}') for n in range(35)]
    with pytest.raises(PipelineError, match="has no topic 'never'"):
        read_lake(spark, lake.root, "never")
