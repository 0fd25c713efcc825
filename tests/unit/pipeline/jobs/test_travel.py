"""What Spark runs of a job elsewhere travels by value: there is nothing of ours where it arrives."""

import subprocess
import sys
from pathlib import Path

from driftq.pipeline.jobs.lineage.run_fold import LetterNote, Try, load
from driftq.pipeline.jobs.rollup.minute_figures import ROLLUP
from driftq.pipeline.lake.delta_tables import Lake
from tests.support.process import environment

# In processes of their own, because what is registered to travel by value stays so.
_HERE = """
import sys
import driftq
from pyspark import cloudpickle
from driftq.pipeline.spark.session_internals import pickle_by_value
{imports}
pickle_by_value(driftq)
sys.stdout.buffer.write(cloudpickle.dumps({sent}))
"""
_ELSEWHERE = """
import pickle, sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent}:
            raise ModuleNotFoundError(f"No module named {{name!r}}")

sys.meta_path.insert(0, Nothing())
sent = pickle.load(sys.stdin.buffer)
{work}
"""


def _ran(code: str, given: bytes = b"") -> bytes:
    done = subprocess.run(
        [sys.executable, "-c", code], input=given, env=environment(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def _worked(imports: str, sent: str, work: str, *absent: str) -> str:
    """What code says that was sent to a process which has no driftq."""
    pickled = _ran(_HERE.format(imports=imports, sent=sent))
    return _ran(_ELSEWHERE.format(absent=("driftq", *absent), work=work), pickled).decode()


_FOLD = """
import pandas as pd

class Kept:
    exists = False
    def update(self, newValue):
        self.exists, self.get = True, newValue

note = ('{"run_id":"r","dlq":{"original_topic":"work","original_partition":0,"original_offset":0,"group":"g",'
        '"attempts":2,"last_error":"boom","routed_at_ms":9}}')
told = [("@work", 1, 5, "p0", '{"run_id":"r","step_id":"a"}', '{"meta":{"redriven":"x"}}'),
        ("@dlq.work", 1, 9, "p0", note, None)]
kept = Kept()
for one in told:
    frame = pd.DataFrame([one], columns=["topic", "seq", "ts_ms", "tag", "envelope", "routing"])
    for out in sent(("t", "r"), [frame], kept):
        state = out["state"][0]
print(state)
"""


def test_lineage_folds_runs_where_nothing_of_ours_is_installed() -> None:
    state = _worked("from driftq.pipeline.jobs.lineage.lineage_job import fold_run", "fold_run", _FOLD, "msgspec")
    found = load("r", "t", state)
    assert found.tries == [Try("a", "", "@work", 0, 0, 5, True)]
    assert found.letters == [LetterNote("@work", 0, "g", 2, "boom", 9)]


_BATCHES = """
import json
from datetime import UTC, datetime
from pathlib import Path
import pyarrow as pa

archived, added = sent
now = datetime(2026, 1, 2, tzinfo=UTC)

class Collected:
    def __init__(self, rows):
        self.rows, self.dtypes = rows, [("meta", "string")]
    def mapInArrow(self, function, schema):
        return Collected([{"told": text} for batch in function(self.rows) for text in batch["told"].to_pylist()])
    def collect(self):
        return self.rows

text = dict.fromkeys(("topic", "node", "tag", "meta", "data", "kind", "reason"), pa.string())
number = dict.fromkeys(("seq", "gap_from", "gap_to"), pa.int64())
rows = [{"topic": "a", "seq": 1, "ts": now, "data": "1", "kind": "record"},
        {"topic": "a", "kind": "tombstone", "gap_from": 2, "gap_to": 3, "reason": "cap"}]
batch = pa.RecordBatch.from_pylist(rows, pa.schema({**text, **number, "ts": pa.timestamp("us", "UTC")}))
counted = {"topic": "a", "tenant_id": "", "minute": now, "bucket": 3,
           "records": 2, "bytes": 9, "errors": 0, "retries": 1}
for _ in range(2):
    archived(Collected([batch]), 0)
    added(pa.Table.from_pylist([counted]))
"""


def test_batches_of_archive_and_rollup_are_worked_on_by_a_server_of_spark_connect(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"q"}', encoding="utf-8")
    (tmp_path / "offsets/0").write_text('v1\n{}\n{"a":{"epoch":7,"seq":3,"began":0}}', encoding="utf-8")
    imports = f"""
from functools import partial
from pathlib import Path
from driftq.pipeline.jobs.archive_job import _Archive
from driftq.pipeline.jobs.rollup.minute_figures import ROLLUP
from driftq.pipeline.jobs.rollup.rollup_job import add_minutes
from driftq.pipeline.lake.delta_tables import WriterBatch, Lake
lake = Lake({str(tmp_path / "lake")!r})
added = partial(add_minutes, lake.table("rollup", ROLLUP), batch=WriterBatch("q", 0))
archived = _Archive(lake, None, Path({str(tmp_path)!r}), None).write
"""
    _worked(imports, "(archived, added)", _BATCHES)
    lake = Lake(tmp_path / "lake")
    assert lake.topic("a").read(["epoch", "seq"]).to_pylist() == [{"epoch": 7, "seq": 1}]
    (minute,) = lake.table("rollup", ROLLUP).read().to_pylist()
    assert (minute["records"], minute["retries"], minute["ages"]) == (2, 1, '{"3":2}')
