"""The job `route`: SQL or Python from topics into a topic, exactly once."""

from pathlib import Path
from typing import Any

import pytest

from driftq.client import Client
from driftq.pipeline import PipelineError, run_job
from driftq.pipeline.errors import AbsentError
from driftq.pipeline.runs.launcher import RunSettings
from driftq.pipeline.spark.plain_spark import is_plain
from tests.pipeline.topics import ask, fresh, patiently, records, values, write
from tests.support.process import ServerProcess

pytestmark = pytest.mark.usefixtures("spark")


def route(server_url: str, directory: Path, **options: Any) -> dict[str, Any]:
    """Run one to its end; what it says."""
    settings = RunSettings(server=server_url, state_dir=str(directory))
    given = {"once": True, "checkpoint": str(directory / "checkpoint"), **options}
    return patiently(lambda: run_job("route", settings=settings, **given)).facts


def test_a_query_routes_what_is_new_and_nothing_twice(server: ServerProcess, server_url: str, tmp_path: Path) -> None:
    source, to = fresh("orders"), fresh("big")
    query = "SELECT get_json_object(data, '$.id') id, 'big' tag FROM source WHERE get_json_object(data, '$.total') > 5"
    for first in (0, 10):
        write(server, source, [{"id": number, "total": number % 10} for number in range(first, first + 10)])
        assert route(server_url, tmp_path, topics=[source], to=to, sql=query)["rows"] == 10
    found = records(server, to)
    assert [record["data"] for record in found] == [{"id": str(number)} for number in (6, 7, 8, 9, 16, 17, 18, 19)]
    assert {record["$tag"] for record in found} == {"big"}


def test_a_function_routes_several_topics_and_bad_records_aside(
    server: ServerProcess, server_url: str, tmp_path: Path
) -> None:
    one, other, to, errors = fresh("one"), fresh("other"), fresh("both"), fresh("errors")
    write(server, one, [1, 2])
    write(server, other, [3])
    file = tmp_path / "mine.py"
    file.write_text(
        "from pyspark.sql import functions as f\n"
        "def broken(rows):\n"
        "    return rows.select('tag', f.when(rows.data == '2', '{').otherwise(rows.data).alias('data'))\n",
        encoding="utf-8",
    )
    route(server_url, tmp_path, topics=[one, other], to=to, transform=f"{file}:broken", error_topic=errors)
    assert sorted(values(server, to)) == [1, 3]
    assert [note["record"]["data"] for note in values(server, errors)] == ["{"]


def test_a_route_that_has_lost_records_stops_until_it_is_told_to_go_on(
    server: ServerProcess, server_url: str, tmp_path: Path
) -> None:
    source, to = fresh("orders"), fresh("routed")
    write(server, source, [1, 2])
    route(server_url, tmp_path, topics=[source], to=to, sql="SELECT data FROM source")
    ask(server, "PUT", f"/v0/topics/{source}", {"cap_records": 2})
    write(server, source, [3, 4, 5, 6])
    with pytest.raises(PipelineError, match=r"has lost seqs 3\.\.4 \(cap\)"):
        route(server_url, tmp_path, topics=[source], to=to, sql="SELECT data FROM source")
    route(server_url, tmp_path, topics=[source], to=to, sql="SELECT data FROM source", on_data_loss="skip")
    assert values(server, to) == [1, 2, 5, 6]


def test_a_query_that_is_none_is_refused_in_a_line(server: ServerProcess, server_url: str, tmp_path: Path) -> None:
    source = fresh("orders")
    write(server, source, [1])
    with pytest.raises(PipelineError, match="nowhere") as told:
        route(server_url, tmp_path, topics=[source], to=fresh(), sql="SELECT * FROM nowhere")
    assert "\n" not in str(told.value)


def test_a_pattern_leaves_out_what_the_route_writes_and_all_columns_are_packed(
    server: ServerProcess, server_url: str, tmp_path: Path
) -> None:
    name = fresh("loop")
    write(server, f"{name}.in", [1, 2])
    options = {"topics": [f"{name}.*"], "to": f"{name}.out", "sql": "SELECT topic, seq FROM source"}
    for rows in (2, 0):
        assert route(server_url, tmp_path, **options)["rows"] == rows
    assert values(server, f"{name}.out") == [{"topic": f"{name}.in", "seq": seq} for seq in (1, 2)]


def test_a_pattern_of_topics_of_the_broker_has_their_columns(
    server: ServerProcess, server_url: str, tmp_path: Path
) -> None:
    name, to = fresh("runs"), fresh("copied")
    with Client(server_url) as client:
        client.broker.create_topic(f"{name}.a")
        client.broker.produce(f"{name}.a", '{"a": 1}')
    route(server_url, tmp_path, topics=[f"@{name}.*"], to=to, sql="SELECT value AS data FROM source")
    assert values(server, to) == [{"a": 1}]


def test_a_batch_that_cannot_be_got_past_is_planned_anew_without_its_note(
    server: ServerProcess, server_url: str, tmp_path: Path
) -> None:
    """As the advice for a batch that is too large for one commit says."""
    source, to = fresh("orders"), fresh("copied")
    write(server, source, list(range(6)))
    with pytest.raises(PipelineError, match="no way"):
        route(
            server_url,
            tmp_path,
            topics=[source],
            to=to,
            sql="SELECT CAST(raise_error('no way') AS STRING) AS data FROM source",
        )
    (tmp_path / "checkpoint/offsets/0").unlink()
    if is_plain():
        (tmp_path / "checkpoint/offsets/.0.crc").unlink()
    again = {"topics": [source], "to": to, "sql": "SELECT data FROM source"}
    assert route(server_url, tmp_path, **again, max_records=2)["batches"] == 3
    assert values(server, to) == list(range(6))


def test_a_topic_that_is_not_there_is_told_by_its_own_error(server_url: str, tmp_path: Path) -> None:
    with pytest.raises(AbsentError, match="there is no topic"):
        route(server_url, tmp_path, topics=[fresh("absent")], to=fresh(), sql="SELECT data FROM source")
