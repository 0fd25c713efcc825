"""The same jobs on a real cluster: executors in processes of their own, our code shipped to them by value.

A cluster and a session on it cost seconds, and a process has one context: one script does the work of all tests, and
each looks at its part of what came of it. By default that is on a standalone cluster; `CLUSTER=all` runs the same tests
on `local-cluster` too, and over Connect.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from driftq.pipeline.spark import cluster
from tests.pipeline.topics import ask, fill
from tests.support.process import ServerProcess, environment

ALL = os.environ.get("CLUSTER") == "all"
PATIENCE_S = 600

_SCRIPT = """
import json, sys, tempfile
from driftq.pipeline import PipelineError, read_topic, run_job, session
from driftq.pipeline.runs.launcher import RunSettings
from driftq.pipeline.lake.delta_tables import Lake
url, target, topic = sys.argv[1:4]
kind, _, where = target.partition("=")
how = {kind: where}
quick = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
spark = session(url, **how, conf={} if "remote" in how else quick, short=True)
place = tempfile.mkdtemp()

def table(name=topic, columns=None, **options):
    reader = spark.read.format("driftq").option("topic", name).options(**options)
    return (reader if columns is None else reader.schema(columns)).load()

def follow(**options):
    rows = spark.readStream.format("driftq").option("topic", topic).options(**options).load()
    writer = rows.writeStream.format("driftq").option("topic", "copy-" + topic)
    writer.option("checkpointLocation", place + "/copy").trigger(availableNow=True).start().awaitTermination()

found = {}
found["split"] = table(splitRecords="500").count()
found["columns"] = table(columns="seq bigint").groupBy().sum("seq").collect()[0][0]
found["filtered"] = table().where("seq > 100 and tag = 't4'").count()
found["gaps"] = [row.reason for row in table("capped-" + topic, withGaps="true").where("kind = 'tombstone'").collect()]
found["read_topic"] = read_topic(spark, topic, columns=["seq"]).count()
follow(maxRecordsPerTrigger="1000")
found["copied"] = table("copy-" + topic).count()
follow()
found["copied_once"] = table("copy-" + topic).count()
table().select("data").limit(5).write.format("driftq").mode("append").option("topic", "batch-" + topic).save()
found["batch"] = table("batch-" + topic).count()

def job(name, *topics):
    settings = RunSettings(server=url, state_dir=place + "/state", **how)
    return run_job(name, settings=settings, topics=topics, lake=place + "/lake", once=True).facts

found["told"] = job("archive", topic)["rows"]
found["archive"] = Lake(place + "/lake").topic(topic).read(["seq"]).num_rows
try:
    found["lineage"] = job("lineage", "@" + topic)["runs"]
except PipelineError as refused:
    found["lineage"] = str(refused)
sys.stdout.write(json.dumps(found) + "\\n")
spark.stop()
"""
_WITHOUT_US = """
import sys

class _Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("driftq", "pyspark_driftq"):
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, _Nothing())
"""


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster with two workers."""
    directory = tmp_path_factory.mktemp("cluster")
    made = cluster.up(2, memory="1g", directory=directory)
    try:
        yield made.master
    finally:
        assert cluster.down(directory)


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has Spark and pyarrow, but nothing of ours, as on a machine of somebody's cluster."""
    directory = tmp_path_factory.mktemp("bare")
    (directory / "sitecustomize.py").write_text(_WITHOUT_US, encoding="utf-8")
    program = directory / "python"
    line = f'PYTHONPATH="{directory}:$PYTHONPATH" exec "{sys.executable}" "$@"'
    program.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    program.chmod(0o755)
    return str(program)


def _made(server: ServerProcess, topic: str) -> None:
    """What the script reads."""
    fill(server, topic, range(2500))
    ask(server, "PUT", f"/v0/topics/capped-{topic}", {"cap_records": 5})
    fill(server, f"capped-{topic}", range(9))
    ask(server, "POST", "/v1/topics", {"name": topic, "partitions": 1})
    ask(server, "POST", "/v1/produce", {"topic": topic, "value": "v", "envelope": {"run_id": "r", "step_id": "s"}})


EXPECTED = {
    "split": 2500,
    "columns": 3126250,
    "filtered": 240,
    "gaps": ["cap"],
    "read_topic": 2500,
    "copied": 2500,
    "copied_once": 2500,
    "batch": 5,
    "told": 2500,
    "archive": 2500,
    "lineage": 1,
}
REFUSED = "lineage calls the server about runs from the driver, so it does not work with --remote: use --master"
TARGETS = {"standalone": "", "local-cluster": "master=local-cluster[2,1,1024]", "connect": "remote=local[2]"}


@pytest.fixture(scope="module", params=TARGETS if ALL else ["standalone"])
def found(request: pytest.FixtureRequest, server: ServerProcess, bare_python: str) -> dict[str, Any]:
    """What came of the script at one place where Spark runs."""
    target = TARGETS[request.param] or f"master={request.getfixturevalue('standalone')}"
    topic = f"on-{request.param}"
    _made(server, topic)
    ran = subprocess.run(
        [sys.executable, "-c", _SCRIPT, f"http://{server.address}", target, topic],
        env=environment(PYSPARK_PYTHON=bare_python),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    told: dict[str, Any] = json.loads(ran.stdout.strip().split("\n")[-1])
    return {**told, "target": request.param}


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("what", EXPECTED)
def test_source_sink_and_jobs_work_where_nothing_of_ours_is_installed(found: dict[str, Any], what: str) -> None:
    expected = EXPECTED[what]
    if what == "lineage" and found["target"] == "connect":
        expected = REFUSED
    assert found[what] == expected


def test_without_a_cluster_there_is_none_to_find_or_to_end(tmp_path: Path) -> None:
    assert cluster.find(tmp_path) is None
    assert not cluster.down(tmp_path)
