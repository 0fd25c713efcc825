"""What tasks of an archive run travels by value: an executor has what Spark itself needs, and nothing of ours."""

import json
import pickle
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from driftq.pipeline.lake.parquet_parts import Places
from tests.support.process import environment

# In a process of its own, because what is registered to travel by value stays so.
_HERE = """
import pickle, sys
import driftq
from pyspark import cloudpickle
from driftq.pipeline.lake.parquet_parts import Places, write_parts
from driftq.pipeline.spark.session_internals import pickle_by_value
pickle_by_value(driftq)
sys.stdout.buffer.write(cloudpickle.dumps((write_parts, *pickle.load(sys.stdin.buffer))))
"""
_ELSEWHERE = """
import pickle, sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("driftq", "msgspec"):
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Nothing())
write_parts, places, row = pickle.load(sys.stdin.buffer)
import pyarrow as pa
text = dict.fromkeys(("topic", "node", "tag", "meta", "data", "kind", "reason"), pa.string())
number = dict.fromkeys(("seq", "gap_from", "gap_to"), pa.int64())
batch = pa.RecordBatch.from_pylist([row], pa.schema({**text, **number, "ts": pa.timestamp("us", "UTC")}))
for told in write_parts([batch], places):
    print(told["told"][0].as_py())
"""


def _ran(code: str, given: bytes) -> bytes:
    done = subprocess.run(
        [sys.executable, "-c", code], input=given, env=environment(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_a_task_of_an_archive_runs_where_nothing_of_ours_is_installed(tmp_path: Path) -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    row = {"topic": "a", "seq": 1, "ts": moment, "meta": '{"k":"v"}', "data": "1", "kind": "record"}
    none = {"a": 0}
    paths = ({"a": str(tmp_path / "a")}, str(tmp_path / "bad"))
    places = Places(*paths, {"a": 7}, none, none, {}, str(tmp_path / "staged"), none, none)
    part = json.loads(_ran(_ELSEWHERE, _ran(_HERE, pickle.dumps((places, row)))))
    assert (part["rows"], part["day"], part["first_seq"]) == (1, "2026-01-02", 1)
    assert (tmp_path / "staged" / Path(part["path"]).name).exists()
    assert not (tmp_path / "a").exists(), "no reader of Parquet may find it before its commit"
