"""A secret in the environment is read once, and no program finds it there afterwards."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from driftq.system.machine import take_variable

CHILD = """
import os, sys
from pathlib import Path
from driftq.system.machine import take_variable

assert take_variable("DRIFTQ_API_KEYS") == "s3cret:rw,other"
assert take_variable("DRIFTQ_API_KEYS") == ""
assert "DRIFTQ_API_KEYS" not in os.environ
shown = [Path("/proc/self/environ").read_bytes()]
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, Path("/proc/self/environ").read_bytes())
    os._exit(0)
os.wait()
shown.append(os.read(read, 65536))
for environment in shown:
    assert b"s3cret" not in environment and b"other" not in environment, environment
    assert b"BEFORE=1" in environment and b"ZAFTER=2" in environment
"""


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="only Linux shows the initial environment")
def test_a_secret_is_gone_from_this_process_and_from_its_children() -> None:
    given = {"BEFORE": "1", "DRIFTQ_API_KEYS": "s3cret:rw,other", "ZAFTER": "2"}
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH", "HOME")}
    done = subprocess.run([sys.executable, "-c", CHILD], env=kept | given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_variable_that_is_missing_is_empty() -> None:
    assert take_variable("DRIFTQ_NOT_SET") == ""


def test_another_mapping_is_read_like_the_environment() -> None:
    given = {"A": "b"}
    assert (take_variable("A", given), given) == ("b", {})
