"""The job `replay`: a range from archive and live log, into a topic or a queue, once, with resume."""

import datetime as dt
import os
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from driftq.pipeline import PipelineError, run_job
from driftq.pipeline.jobs.replay.replay_source import ReplaySource
from driftq.pipeline.lake.delta_tables import Lake, WriterBatch
from driftq.pipeline.lake.table_layout import GAPS, RECORDS
from driftq.pipeline.runs.launcher import RunSettings
from driftq.pipeline.runs.run_records import RunRecord
from tests.pipeline.topics import ask, fresh, patiently, records, values, write
from tests.support.process import ROOT, ServerProcess, serving
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.usefixtures("spark")
_AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRIFTQ_PIPELINE_DIR", str(tmp_path))


class Replays:
    """Replays of one test."""

    def __init__(self, server_url: str, directory: Path) -> None:
        self._settings = RunSettings(server=server_url, state_dir=str(directory))

    def __call__(self, **options: Any) -> dict[str, Any]:
        listener = options.pop("listener", None)
        return run_job("replay", settings=self._settings, listener=listener, **options).facts


@pytest.fixture
def replay(server_url: str, tmp_path: Path) -> Replays:
    return Replays(server_url, tmp_path)


def test_a_range_arrives_as_it_was_and_the_same_replay_writes_nothing_again(
    server: ServerProcess, replay: Replays
) -> None:
    topic, to = fresh("source"), fresh("again")
    write(server, topic, list(range(100)), tag="t", meta={"k": "v"}, node="n")
    assert replay(topic=topic, to=to, from_seq=11, to_seq=30, dry_run=True)["rows"] == 20
    assert server.get(f"/v0/topics/{to}")[0] == 404
    for expected in (20, 0):
        assert replay(topic=topic, to=to, from_seq=11, to_seq=30)["rows"] == expected
    found = records(server, to)
    assert [record["data"] for record in found] == list(range(10, 30))
    assert {(record["$tag"], record["$node"], record["meta"]["k"]) for record in found} == {("t", "n", "v")}
    assert replay(topic=topic, to=to, from_seq=11, to_seq=30, name="second")["rows"] == 20
    assert len(records(server, to)) == 40


def _cut_off(record: RunRecord) -> None:
    if record.progress.batches == 2:
        raise RuntimeError("cut off")


def _cut_off_after_one(record: RunRecord) -> None:
    if record.progress.batches == 1:
        raise RuntimeError("cut off")


def test_a_replay_that_was_cut_off_goes_on_where_it_was(server: ServerProcess, replay: Replays) -> None:
    topic, to = fresh("source"), fresh("again")
    write(server, topic, list(range(40)))
    with pytest.raises(RuntimeError, match="cut off"):
        replay(topic=topic, to=to, rate=10.0, listener=_cut_off)
    assert values(server, to) == list(range(20))
    facts = replay(topic=topic, to=to, rate=1e9)
    assert (facts["resumed"], facts["rows"]) == (True, 20)
    assert values(server, to) == list(range(40))


def test_archive_and_live_log_are_one(server: ServerProcess, server_url: str, replay: Replays, tmp_path: Path) -> None:
    topic, to, lake = fresh("source"), fresh("again"), str(tmp_path / "lake [a] {b}*")
    write(server, topic, list(range(60)))
    settings = RunSettings(server=server_url, state_dir=str(tmp_path))
    patiently(lambda: run_job("archive", settings=settings, topics=[topic], lake=lake, once=True))
    ask(server, "PUT", f"/v0/topics/{topic}", {"cap_records": 30})
    write(server, topic, list(range(60, 80)))
    with pytest.raises(PipelineError, match="begins at seq 51: give --lake"):
        replay(topic=topic, to=to, from_seq=1)
    facts = replay(topic=topic, to=to, lake=lake, where="cast(data as int) % 2 = 0")
    assert (facts["from_archive"], facts["from_live"], facts["rows"]) == (50, 30, 40)
    assert values(server, to) == list(range(0, 80, 2))


def test_what_the_live_log_loses_on_the_way_comes_from_the_archive_or_stops_the_replay(
    server: ServerProcess, server_url: str, replay: Replays, tmp_path: Path
) -> None:
    topic, to, bare, lake = fresh("source"), fresh("again"), fresh("bare"), str(tmp_path / "lake")
    write(server, topic, list(range(40)))
    settings = RunSettings(server=server_url, state_dir=str(tmp_path))
    patiently(lambda: run_job("archive", settings=settings, topics=[topic], lake=lake, once=True))
    for begun in ({"to": to, "lake": lake}, {"to": bare}):
        with pytest.raises(RuntimeError, match="cut off"):
            replay(topic=topic, rate=10.0, listener=_cut_off, **begun)
    ask(server, "DELETE", f"/v0/topics/{topic}")
    write(server, topic, [f"of another life {number}" for number in range(40)])
    assert replay(topic=topic, to=to, lake=lake, rate=1e9)["rows"] == 20
    assert values(server, to) == list(range(40))
    with pytest.raises(PipelineError, match=r"has seqs 21\.\.30"):
        replay(topic=topic, to=bare, rate=1e9)
    assert values(server, bare) == list(range(20))
    facts = replay(topic=topic, to=bare, lake=f"{lake}/", rate=1e9)
    assert (facts["resumed"], facts["rows"]) == (True, 20)
    assert values(server, bare) == list(range(40))


def _capped(server: ServerProcess, topic: str, cap: int, numbers: range) -> int:
    """A topic that keeps the last of these; its epoch."""
    ask(server, "PUT", f"/v0/topics/{topic}", {"cap_records": cap})
    for number in numbers:
        write(server, topic, [number])
    epoch = server.get(f"/v0/topics/{topic}/segments")[1]["epoch"]
    assert isinstance(epoch, int)
    return epoch


def _archive_by_hand(lake: Lake, topic: str, epoch: int, seqs: list[int], lost: tuple[int, int]) -> None:
    """An archive that has these records, and was told that others are lost."""
    own = {"topic": topic, "epoch": epoch, "ts": _AT, "day": _AT.date()}
    rows = [{**own, "seq": seq, "data": str(seq)} for seq in seqs]
    lake.topic(topic).append(pa.Table.from_pylist(rows, RECORDS), WriterBatch("by hand", 0))
    gap = {**own, "gap_from": lost[0], "gap_to": lost[1], "reason": "cap", "seen_ts": _AT}
    lake.table("gaps", GAPS).append(pa.Table.from_pylist([gap], GAPS), WriterBatch("by hand", 0))


def test_what_the_archive_has_lost_is_told_and_not_left_out(
    server: ServerProcess, replay: Replays, tmp_path: Path
) -> None:
    topic, to, lake = fresh("source"), fresh("again"), str(tmp_path / "lake")
    epoch = _capped(server, topic, 2, range(1, 13))
    _archive_by_hand(Lake(lake), topic, epoch, [1, 2, 6, 7, 10], lost=(3, 5))  # 8 and 9 were deleted before
    with pytest.raises(PipelineError, match=r"has seqs 3\.\.5: replay the seqs before or after them"):
        replay(topic=topic, to=to, lake=lake, from_seq=1)
    assert server.get(f"/v0/topics/{to}")[0] == 404
    assert replay(topic=topic, to=to, lake=lake, from_seq=6)["rows"] == 5
    assert values(server, to) == [6, 7, 10, 11, 12]


def test_what_retention_takes_while_a_step_is_read_comes_from_the_archive(
    server: ServerProcess, replay: Replays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, to, lake = fresh("source"), fresh("again"), str(tmp_path / "lake")
    epoch = _capped(server, topic, 4, range(1, 5))
    _archive_by_hand(Lake(lake), topic, epoch, [1, 2, 3, 4], lost=(9, 9))
    look, looks = ReplaySource._live, count(1)

    def slow(self: ReplaySource, first: int, last: int) -> "DataFrame":
        found = look(self, first, last)
        if next(looks) == 2:  # the first one is for the plan
            write(server, topic, [5, 6])
        return found

    monkeypatch.setattr(ReplaySource, "_live", slow)
    assert replay(topic=topic, to=to, lake=lake)["rows"] == 4
    assert values(server, to) == [1, 2, 3, 4]


def test_a_name_is_of_one_replay(server: ServerProcess, replay: Replays) -> None:
    topic, to = fresh("source"), fresh("again")
    write(server, topic, list(range(5)))
    assert replay(topic=topic, to=to, name="mine")["rows"] == 5
    with pytest.raises(PipelineError, match="its from_seq is not given, here it is 3; choose another --name"):
        replay(topic=topic, to=to, name="mine", from_seq=3)
    assert len(values(server, to)) == 5


def test_a_step_larger_than_one_publication_is_written_in_parts(tmp_path: Path) -> None:
    limit = "import driftq.model.limits as limits\nlimits.COMMIT_BYTES_MAX = 1 << 16\n"
    (tmp_path / "sitecustomize.py").write_text(limit, encoding="utf-8")
    with serving(tmp_path, PYTHONPATH=os.pathsep.join((str(tmp_path), str(ROOT)))) as small:
        small.wait_ready()
        data = [f"{number:01000}" for number in range(100)]
        write(small, "big", data)
        url = f"http://{small.address}"
        written = Replays(url, tmp_path)
        with pytest.raises(RuntimeError, match="cut off"):
            written(topic="big", to="big-again", listener=_cut_off_after_one)
        assert values(small, "big-again") == data[:50]
        facts = written(topic="big", to="big-again")
        assert (facts["rows"], facts["steps"], facts["resumed"]) == (50, 1, True)
        assert values(small, "big-again") == data


def topic_with_a_hole(server: ServerProcess) -> str:
    """Records 1, 4 and 5; a router's source has lost the other two before there was room for their copies."""
    source, topic = fresh("source"), fresh("holed")
    ask(server, "PUT", f"/v0/topics/{source}", {"cap_records": 2})
    ask(server, "PUT", f"/v0/topics/{topic}", {"cap_records": 1, "discard": "reject"})
    ask(server, "PUT", f"/v0/routers/{topic}", {"source": source, "dest": topic})
    write(server, source, ["copied"])
    assert values(server, topic) == ["copied"]
    for value in ("lost", "lost too", "kept", "kept too"):
        write(server, source, [value])
    ask(server, "PUT", f"/v0/topics/{topic}", {"cap_records": 100})
    until(lambda: values(server, topic), lambda found: found == ["copied", "kept", "kept too"])
    return topic


def test_holes_of_the_live_log_are_counted_and_told(server: ServerProcess, server_url: str, tmp_path: Path) -> None:
    topic, to = topic_with_a_hole(server), fresh("again")
    settings = RunSettings(server=server_url, state_dir=str(tmp_path))
    hole = [{"first_seq": 2, "last_seq": 3, "reason": "source_trim"}]
    for dry_run, rows in ((True, 3), (False, 3), (False, 0)):
        done = run_job("replay", settings=settings, topic=topic, to=to, dry_run=dry_run)
        assert (done.facts["rows"], done.facts["lost"], done.tables) == (rows, 2, {"lost": hole})
    beside = run_job("replay", settings=settings, topic=topic, to=to, from_seq=4)
    assert (beside.facts["rows"], beside.facts["lost"], beside.tables) == (2, 0, {})
    inside = run_job("replay", settings=settings, topic=topic, to=to, from_seq=2, to_seq=3)
    assert (inside.facts["rows"], inside.facts["lost"], inside.tables) == (0, 2, {"lost": hole})


def test_a_range_of_time_goes_into_a_queue(server: ServerProcess, replay: Replays) -> None:
    topic, to = fresh("source"), fresh("queue")
    ask(server, "PUT", f"/v0/topics/{to}", {"type": "queue"})
    for number in range(3):
        write(server, topic, [number])
    second = records(server, topic)[1]["$ts"]
    expected = [record["data"] for record in records(server, topic) if record["$ts"] >= second]
    assert replay(topic=topic, to=to, from_time=str(second), to_time="2999-01-01T00:00:00Z")["rows"] == len(expected)
    _, claimed = server.ask("POST", f"/v0/topics/{to}/claim", {"node": "n", "max": 10})
    assert [job["data"] for job in claimed["claimed"]] == expected


def test_a_topic_that_is_nowhere_is_said_to_be_and_no_destination_is_made(
    server: ServerProcess, replay: Replays
) -> None:
    to = fresh("again")
    with pytest.raises(PipelineError, match="there is no topic 'absent'"):
        replay(topic="absent", to=to)
    assert server.get(f"/v0/topics/{to}")[0] == 404
