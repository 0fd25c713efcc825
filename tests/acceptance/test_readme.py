"""The first five minutes of the README, as a user would type them."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.process import serving
from tests.tidy.tree import ROOT

_BLOCK = re.compile(r"## First five minutes.*?```sh\n(.*?)```", re.DOTALL)


@pytest.mark.slow
def test_the_first_five_minutes_work_as_written(tmp_path: Path) -> None:
    found = _BLOCK.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert found is not None
    with serving(tmp_path) as server:
        server.wait_ready()
        script = f"set -eu\nDRIFTQ=http://{server.address}\n" + found[1]
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        for wanted in ('"first_seq":1', '"$tag":"eu"', '"claimed":[{"$seq":1', '"acked":1', "event: record", '"id":3'):
            assert wanted in done.stdout, done.stdout
        assert '"error"' not in done.stdout
