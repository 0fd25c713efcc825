"""The demo's part of the data pipeline: what the agents did is archived and traced, and the archive is equal."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from driftq.cli.demo.demo_lake import missing, run_pipeline
from driftq.cli.demo.workload import play

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS = 12


def test_what_the_agents_did_is_archived_and_traced(spark: "SparkSession", server_url: str, tmp_path: Path) -> None:
    assert missing() is None
    played = asyncio.run(play(server_url, "spark", RUNS))
    told: list[str] = []
    tables = run_pipeline(server_url, tmp_path / "lake", told.append)
    assert {row["verdict"] for row in tables["archive and server"]} == {"equal"}
    archived = {row["topic"]: row["lake_rows"] for row in tables["archive and server"]}
    assert archived["usage"] == played.handled
    (facts,) = tables["archived by Spark"]
    assert facts["rows"] == sum(int(str(rows)) for rows in archived.values())
    runs = tables["runs that Spark traced, the most eventful first"]
    assert {row["run_id"] for row in runs} <= set(played.run_ids())
    assert runs[0]["critical_path"]
    assert len(told) == 3
