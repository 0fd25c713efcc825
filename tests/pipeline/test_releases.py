"""What a release's pipeline wrote is continued: the lake of its archive, and the checkpoint of its query."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from driftq.client import Client
from driftq.pipeline.lake.archive_check import verify
from driftq.pipeline.lake.delta_tables import Lake
from driftq.pipeline.lake.server_topics import ServerTopics
from tests.golden.released import (
    ARCHIVED,
    LATER,
    archived,
    copied,
    copy_orders,
    expected,
    flags,
    releases,
    unpack,
)
from tests.pipeline.jobs import job_runner
from tests.pipeline.topics import finished, patiently
from tests.support.process import serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

every_release = pytest.mark.parametrize("version", releases())


@every_release
def test_a_lake_of_a_release_opens_and_is_continued(spark: "SparkSession", version: str, tmp_path: Path) -> None:
    unpack(version, tmp_path)
    lake, wanted = tmp_path / "lake", expected(version).lake
    assert archived(lake) == wanted
    with serving(tmp_path, *flags(tmp_path)) as server:
        server.wait_ready()
        url = f"http://{server.address}"
        run = job_runner(url, tmp_path / "state")
        assert patiently(lambda: run("archive", topics=list(ARCHIVED), lake=str(lake))).facts["rows"] == LATER
        with Client(url) as client:
            findings = verify(Lake(lake), ServerTopics(client), None)
    assert {finding.topic: finding.verdict for finding in findings} == dict.fromkeys(ARCHIVED, "equal")
    rows = archived(lake)
    assert rows["@tasks"] == wanted["@tasks"]
    assert rows["orders"][:-LATER] == wanted["orders"]


@every_release
def test_a_query_continues_from_a_checkpoint_of_a_release(spark: "SparkSession", version: str, tmp_path: Path) -> None:
    unpack(version, tmp_path)
    before = expected(version).copied
    with serving(tmp_path, *flags(tmp_path)) as server:
        server.wait_ready()
        assert copied(server) == before
        finished(lambda: copy_orders(spark, f"http://{server.address}", tmp_path / "checkpoint"))
        assert copied(server) == [*before, *({"n": n} for n in range(27, 27 + LATER))]
