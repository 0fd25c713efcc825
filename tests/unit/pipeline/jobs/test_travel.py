"""What Spark runs of a job elsewhere travels by value: there is nothing of ours where it arrives."""

import subprocess
import sys

from driftq.pipeline.jobs.run_fold import Letter, Try, load
from tests.acceptance.process import environment

# In processes of their own, because what is registered to travel by value stays so.
_HERE = """
import sys
from pyspark import cloudpickle
from driftq.pipeline.shipping import ship_by_value
{imports}
ship_by_value()
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
told = [("v1:work", 1, 5, "p0", '{"run_id":"r","step_id":"a"}', '{"meta":{"redriven":"x"}}'),
        ("v1:dlq.work", 1, 9, "p0", note, None)]
kept = Kept()
for one in told:
    frame = pd.DataFrame([one], columns=["topic", "seq", "ts_ms", "tag", "envelope", "routing"])
    for out in sent(("t", "r"), [frame], kept):
        state = out["state"][0]
print(state)
"""


def test_lineage_folds_runs_where_nothing_of_ours_is_installed() -> None:
    state = _worked("from driftq.pipeline.jobs.lineage import fold_run", "fold_run", _FOLD, "msgspec")
    found = load("r", "t", state)
    assert found.tries == [Try("a", "", "v1:work", 0, 0, 5, True)]
    assert found.letters == [Letter("v1:work", 0, "g", 2, "boom", 9)]
