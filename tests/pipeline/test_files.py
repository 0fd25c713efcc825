"""Pipelines of users: files with steps, and plain code."""

from pathlib import Path

import pytest

from driftq.client import Client, Record
from driftq.pipeline import PipelineError
from driftq.pipeline.jobs.user_pipeline import FileOptions, run_file
from driftq.pipeline.runs.job import JobResult
from driftq.pipeline.runs.launcher import RunSettings, launch

STEPS = """
from driftq import pipeline

@pipeline.step(source="file-orders")
def parsed(rows):
    return rows.selectExpr("tag", "cast(get_json_object(data, '$.n') AS INT) AS n")

@pipeline.step(source=parsed, dest="file-big")
def big(rows):
    return rows.where("n >= 90").selectExpr("tag", "to_json(struct(n)) AS data")

@pipeline.step
def told(spark):
    spark.sql("SELECT 1").collect()
"""

PLAIN = """
from driftq.pipeline import session

rows = session().readStream.format("driftq").option("topic", "file-plain").load()
query = (
    rows.writeStream.format("memory").queryName("file_plain").trigger(availableNow=True)
    .option("checkpointLocation", "{checkpoint}").start()
)
"""


def run(server_url: str, tmp_path: Path, text: str) -> JobResult:
    file = tmp_path / "mine.py"
    file.write_text(text, encoding="utf-8")
    settings = RunSettings(server=server_url, master="local[2,2]", state_dir=str(tmp_path / "state"))
    return launch(str(file), {}, lambda run: run_file(run, file, FileOptions(once=True)), settings=settings)


def test_steps_of_a_file_lead_from_topic_to_topic_once(spark: object, server_url: str, tmp_path: Path) -> None:
    with Client(server_url) as client:
        client.topic("file-orders").write([{"data": {"n": n}, "tag": f"t{n}"} for n in range(100)])
        for _ in range(2):
            ended = run(server_url, tmp_path, STEPS)
            assert ended.facts["steps"] == 3
        records = [record for record in client.topic("file-big").read() if isinstance(record, Record)]
    assert [(record.tag, record.data) for record in records] == [(f"t{n}", {"n": n}) for n in range(90, 100)]


def test_plain_streaming_code_is_run_and_followed(spark: object, server_url: str, tmp_path: Path) -> None:
    with Client(server_url) as client:
        client.topic("file-plain").write([{"data": {"n": n}} for n in range(30)])
    ended = run(server_url, tmp_path, PLAIN.format(checkpoint=tmp_path / "checkpoint"))
    assert (ended.facts["queries"], ended.facts["rows"]) == (1, 30)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("from driftq import pipeline\n@pipeline.step(dest='x')\ndef lost(rows): ...", "no source"),
        ("from driftq import pipeline\n@pipeline.step(source='a')\ndef one(rows): ...\n" * 2, "two steps"),
    ],
)
def test_a_file_that_cannot_work_is_refused_in_one_line(
    spark: object, server_url: str, tmp_path: Path, text: str, told: str
) -> None:
    with pytest.raises(PipelineError, match=told):
        run(server_url, tmp_path, text)


FAILS_SOON = """
import time
from driftq import pipeline

@pipeline.step(source="file-fails", dest="file-failed")
def fails(rows):
    return rows.selectExpr("CAST(raise_error(concat('no ', data)) AS STRING) AS data")

@pipeline.step
def slow(spark):
    for _ in range(300):
        if not spark.streams.active:
            break
        time.sleep(0.1)
"""

PLAIN_FAILS_SOON = """
import time

rows = spark.readStream.format("driftq").option("topic", "file-fails").load()
writer = rows.selectExpr("raise_error(concat('no ', data))").writeStream.format("noop").trigger(availableNow=True)
writer.option("checkpointLocation", "{checkpoint}").start()
for _ in range(300):
    if not spark.streams.active:
        break
    time.sleep(0.1)
"""


@pytest.mark.parametrize("text", [FAILS_SOON, PLAIN_FAILS_SOON])
def test_a_query_that_fails_before_all_of_the_file_has_run_fails_the_run(
    spark: object, server_url: str, tmp_path: Path, text: str
) -> None:
    with Client(server_url) as client:
        client.topic("file-fails").append({"n": 1})
    with pytest.raises(PipelineError, match=r"no \{") as told:
        run(server_url, tmp_path, text.replace("{checkpoint}", str(tmp_path / "checkpoint")))
    assert "\n" not in str(told.value)


SIBLING = """
from file_helpers import doubled
from pyspark.sql import functions as f
from driftq import pipeline

@pipeline.step(source="file-sibling", dest="file-doubled")
def all(rows):
    return rows.select(f.udf(doubled, "string")("data").alias("data"))
"""


def test_a_module_beside_the_file_reaches_the_processes_of_spark(
    spark: object, server_url: str, tmp_path: Path
) -> None:
    (tmp_path / "file_helpers.py").write_text(
        "FACTOR = 2\ndef doubled(text):\n    return str(FACTOR * int(text))\n", encoding="utf-8"
    )
    with Client(server_url) as client:
        client.topic("file-sibling").write([{"data": n} for n in range(3)])
        run(server_url, tmp_path, SIBLING)
        found = [record.data for record in client.topic("file-doubled").read() if isinstance(record, Record)]
    assert found == [0, 2, 4]


def test_a_mistake_in_a_file_is_one_line_with_its_place(spark: object, server_url: str, tmp_path: Path) -> None:
    text = "from driftq import pipeline\n@pipeline.step\ndef odd(spark):\n    spark.sql('SELECT nothing')\n"
    with pytest.raises(PipelineError, match=r"mine\.py:4: .*nothing") as told:
        run(server_url, tmp_path, text)
    assert "\n" not in str(told.value)
