"""`driftq inspect`, `verify` and `repair` on the directory of a real server."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import apart
from tests.support.process import serving

pytestmark = pytest.mark.slow

_RECORDS = 3000


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a server that was stopped."""
    place = tmp_path_factory.mktemp("stopped")
    with serving(place, "--segment-max-events", "500") as server:
        server.wait_ready()
        for first in range(0, _RECORDS, 300):
            records = [{"data": {"n": n}, "tag": f"t{n}"} for n in range(first, first + 300)]
            assert server.ask("POST", "/v0/topics/t", {"records": records})[0] in (200, 201)
        busy = apart("verify", "--data-dir", server.data_dir)
        assert (busy.code, busy.err.count("\n")) == (1, 1)
        assert "in use by a server; stop it first" in busy.err
        assert apart("inspect", "--data-dir", server.data_dir).code == 0
        assert server.stop() == 0
    with serving(place) as server:  # behind its checkpoint nothing of the first log is left
        server.wait_ready()
        assert server.stop() == 0
    return server.data_dir


@pytest.fixture
def written(stopped: Path, tmp_path: Path) -> Path:
    """A copy of it, to break."""
    return shutil.copytree(stopped, tmp_path / "data")


def _verify(directory: Path) -> tuple[int, dict[str, Any]]:
    ran = apart("verify", "--data-dir", directory, "--json")
    return ran.code, ran.json


def test_damage_is_found_mended_and_told(written: Path, tmp_path: Path) -> None:
    code, report = _verify(written)
    assert (code, report["ok"], report["findings"]) == (0, True, [])
    segment = sorted(written.glob("topics/*/seg-*.data"))[1]
    content = bytearray(segment.read_bytes())
    content[200] ^= 1
    segment.write_bytes(content)
    checkpoint = next(written.glob("meta/snapshot-*.bin"))
    saved = bytearray(checkpoint.read_bytes())
    saved[17] ^= 1
    checkpoint.write_bytes(saved)
    code, report = _verify(written)
    assert (code, report["ok"]) == (7, False)
    assert {Path(found["file"]).name for found in report["findings"]} >= {segment.name, checkpoint.name}
    dry = apart("repair", "--data-dir", written)
    assert (dry.code, segment.read_bytes()) == (7, bytes(content))
    done = apart("repair", "--data-dir", written, "--yes", "--json")
    assert done.code == 0, done.err
    told = done.json
    assert told["left"] == []
    lost = sum(one["last_seq"] - one["first_seq"] + 1 for one in told["lost"])
    assert 0 < lost <= 300
    assert _verify(written)[0] == 0
    with serving(tmp_path) as server:
        server.wait_ready()
        _, page = server.ask("POST", "/v0/topics/t/diff", {"from_seq": 0, "limit": _RECORDS})
        state = server.get("/v0/topics/t")[1]
        assert state["head_seq"] == _RECORDS
        assert state["count"] == _RECORDS - lost
        assert page["records"] or page["tombstone"]
    kept = Path(told["originals"]) / segment.relative_to(written)
    assert kept.read_bytes() == bytes(content)


def test_files_are_shown_as_tables_and_as_json(stopped: Path) -> None:
    listed = apart("inspect", "--data-dir", stopped, "--json").json
    one_of_each = {row["kind"]: row for row in listed}
    assert one_of_each.keys() >= {"wal", "snapshot", "data", "idx", "tags"}
    for row in one_of_each.values():
        looked = apart("inspect", row["file"], "--json")
        assert looked.code == 0, looked.err
        assert isinstance(looked.json, list)
    assert "file_head" in apart("inspect", next(row["file"] for row in listed if row["kind"] == "wal")).out
    absent = apart("inspect", "wal-0000000000000009.log")
    assert (absent.code, absent.err.count("\n")) == (1, 1)
