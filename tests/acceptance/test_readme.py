"""The first five minutes of the README, as a user would type them."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.process import serving
from tests.tidy.tree import ROOT

_SECTION = re.compile(r"## First five minutes(.*?)\n## ", re.DOTALL)
_BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)


@pytest.mark.slow
def test_the_first_five_minutes_work_as_written(tmp_path: Path) -> None:
    section = _SECTION.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert section is not None
    commands = "\n".join(_BLOCK.findall(section[1]))
    with serving(tmp_path) as server:
        server.wait_ready()
        script = f"set -eu\nDRIFTQ=http://{server.address}\n" + commands
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        for wanted in (
            '"first_seq":1',
            '"$tag":"eu"',
            '"claimed":[{"$seq":1',
            '"acked":1',
            "event: record",
            '"id":3',
            '"value":"greet"',
        ):
            assert wanted in done.stdout, done.stdout
        assert '"error"' not in done.stdout
