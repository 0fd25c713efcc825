"""`driftq serve` and `driftq selfcheck` as a user meets them: real processes, real ports, real directories."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec import json

from driftq import __version__
from driftq.cli.server.selfcheck import run_selfcheck
from tests.support import process
from tests.support.process import PATIENCE_S, serving

GOLDEN = Path(__file__).parents[1] / "golden/directory/v1"
READY_S_MAX = 0.5
STOP_S_MAX = 10.0
TRIES = 8

pytestmark = pytest.mark.slow


def everything_below(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its time and content: what must not change when nothing may be touched."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.suffix != ".log"
    }


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def refused(directory: Path, *flags: str, **variables: str) -> str:
    """The line with which a start is refused; it exits with 1, and says where it listens neither here nor there."""
    with serving(directory, *flags, **variables) as server:
        code, errors = server.ended()
        assert code == 1, errors
        assert not server.port_file.exists()
    assert errors.startswith("driftq: ")
    assert errors.count("\n") == 1
    return errors


# --- start and stop -----------------------------------------------------------------------------------------------


def test_an_empty_directory_is_served_within_half_a_second(tmp_path: Path) -> None:
    """The best of several starts counts: the machine may be busy with other tests."""
    took = []
    for number in range(TRIES):
        directory = tmp_path / str(number)
        directory.mkdir()
        with serving(directory) as server:
            server.wait_ready()
            took.append(time.monotonic() - server.began_s)
        if took[-1] < READY_S_MAX:
            return
    pytest.fail(f"ready after {took} s")


def test_a_start_prints_one_line_with_the_address_and_writes_it_to_the_port_file(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        line = server.wait_ready()
        host, _, port = server.address.rpartition(":")
        assert host == "127.0.0.1"
        assert int(port) > 0
        assert line == f"driftq {__version__} listens on http://{server.address}, data in {server.data_dir}\n"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "port"]
        assert server.stop() == 0
        assert server.process.stdout is not None
        assert server.process.stdout.closed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_with_0_and_leaves_one_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    """proves: G-DUR-10; inv: 84"""
    with serving(tmp_path) as server:
        server.wait_ready()
        began_s = time.monotonic()
        assert server.stop(number) == 0
        assert time.monotonic() - began_s < STOP_S_MAX
        assert [path.name for path in (server.data_dir / "meta").iterdir()] == ["snapshot-0000000000000001.bin"]


def test_sighup_is_logged_and_ends_nothing(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.wait_ready()
        pid = server.process.pid
        writers = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        assert len(writers) == 2
        for each in [*map(int, writers), pid]:
            os.kill(each, signal.SIGHUP)
        assert server.ask("POST", "/v0/topics/t", {"records": [{"data": 1}]})[0] == 201
        assert Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split() == writers
        server.process.send_signal(signal.SIGTERM)
        code, errors = server.ended()
    assert code == 0
    assert errors.count("SIGHUP is ignored: settings are read at start only") == 1


def test_an_idle_keep_alive_connection_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.wait_ready()
        host, _, port = server.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as idle:
            idle.sendall(b"GET /healthz HTTP/1.1\r\nhost: here\r\n\r\n")
            assert idle.recv(4096).startswith(b"HTTP/1.1 200 OK\r\n")
            began_s = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began_s < STOP_S_MAX / 2
            assert idle.recv(4096) == b""


def test_the_data_directory_and_those_above_it_are_made(tmp_path: Path) -> None:
    with serving(tmp_path, data_dir=str(tmp_path / "a/b/c"), DRIFTQ_COLD_DIR=str(tmp_path / "d/e")) as server:
        server.wait_ready()
        assert (tmp_path / "a/b/c/.driftq.lock").read_text(encoding="utf-8") == f"pid={server.process.pid}\n"
        assert (tmp_path / "d/e/topics").is_dir()


def test_a_killed_server_starts_again_on_the_same_directory(tmp_path: Path) -> None:
    """proves: G-REC-1"""
    for _ in range(3):
        with serving(tmp_path) as server:
            server.wait_ready()
            assert server.get("/v0/ready") == (200, {"status": "ready", "wal_replay_complete": True, "topics": 0})
            assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    with serving(tmp_path) as server:
        server.wait_ready()
        assert server.stop() == 0


# --- refusals -----------------------------------------------------------------------------------------------------


def test_a_second_server_on_a_directory_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """proves: G-REC-10; inv: 85; row: F-START-1"""
    second = tmp_path / "second"
    second.mkdir()
    with serving(tmp_path) as first:
        first.wait_ready()
        before = everything_below(first.data_dir)
        said = refused(second, "--data-dir", str(first.data_dir))
        assert str(first.data_dir) in said
        assert "in use by" in said
        assert everything_below(first.data_dir) == before
        assert first.get("/readyz")[0] == 200
        assert first.stop() == 0


_START_ON_A_CLOCK_THAT_ONLY_SLEEPS_MOVE = """
import sys
from types import SimpleNamespace
from driftq.cli.server.serve import run_server
from driftq.system import lock

slept = []
lock.time = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
code = run_server({"data_dir": sys.argv[1], "port": 0})
print(round(sum(slept)))
sys.exit(code)
"""


def test_a_start_waits_once_for_a_stuck_writer_of_the_server_before_it(tmp_path: Path) -> None:
    """row: F-START-2"""
    data = tmp_path / "data"
    with serving(tmp_path) as server:
        server.wait_ready()
        pid = server.process.pid
        writers = [int(found) for found in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]
        for writer in writers:
            os.kill(writer, signal.SIGSTOP)
        server.process.kill()
        server.process.wait(PATIENCE_S)
        try:
            script = [sys.executable, "-c", _START_ON_A_CLOCK_THAT_ONLY_SLEEPS_MOVE, str(data)]
            start = subprocess.run(
                script, env=process.environment(), capture_output=True, text=True, check=False, timeout=PATIENCE_S
            )
        finally:
            for writer in writers:
                os.kill(writer, signal.SIGKILL)
    assert (start.returncode, start.stdout) == (1, "20\n")
    assert f"(pid {writers[0]}, {writers[1]}) of a server that is gone; they did not end within 20 s" in start.stderr


def test_a_wal_file_above_2_gib_is_refused(tmp_path: Path) -> None:
    """row: F-START-3"""
    said = refused(tmp_path, DRIFTQ_WAL_FILE_BYTES=str(5 << 30))
    assert said == "driftq: DRIFTQ_WAL_FILE_BYTES is 5368709120; the limit is 2147483648\n"


def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port}" in refused(tmp_path, "--port", str(port))
    with serving(tmp_path) as server:
        server.wait_ready()


@pytest.mark.parametrize("port", ["70000", "-1", "http"])
def test_a_port_that_is_none_is_refused(tmp_path: Path, port: str) -> None:
    with serving(tmp_path, f"--port={port}") as server:
        code, errors = server.ended()
        assert code == 2
        assert errors.count("\n") == 1
        assert "--port" in errors
    with serving(tmp_path, DRIFTQ_HOST=f"127.0.0.1:{port}") as server:
        assert server.ended()[0] == 1
    assert not (tmp_path / "data").exists()


def test_a_data_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    assert "is not a directory" in refused(tmp_path, "--data-dir", str(tmp_path / "file"))
    assert "not a directory" in refused(tmp_path, "--data-dir", str(tmp_path / "file/below")).lower()
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_a_cold_directory_that_is_the_data_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "data")
    assert "must be another" in refused(tmp_path, "--cold-dir", str(tmp_path / "link"))


@pytest.mark.parametrize("mount_point", [True, False])
def test_a_cold_directory_that_is_not_mounted_is_refused_and_nothing_is_touched(
    tmp_path: Path, *, mount_point: bool
) -> None:
    """proves: G-REC-11; row: F-START-6"""
    shutil.copytree(GOLDEN / "data", tmp_path / "data")
    cold = tmp_path / "cold"
    if mount_point:
        cold.mkdir()
    (tmp_path / "data/.driftq.lock").touch()
    before = sorted(map(str, tmp_path.rglob("*")))
    assert f"{cold} is empty or not there" in refused(tmp_path, "--cold-dir", str(cold))
    assert sorted(map(str, tmp_path.rglob("*"))) == before
    shutil.copytree(GOLDEN / "cold", cold, dirs_exist_ok=True)
    with serving(tmp_path, "--cold-dir", str(cold)) as server:
        server.wait_ready()
        assert server.get("/v0/ready")[1]["holes"] == {"corruption": 0, "crash": 1, "control": 0, "at_most": 1}


def test_a_port_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    assert "absent/port" in refused(tmp_path, "--port-file", str(tmp_path / "absent/port"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "no-such-host.invalid"])
def test_an_open_address_without_keys_is_refused_and_nothing_is_made(tmp_path: Path, host: str) -> None:
    said = refused(tmp_path, "--host", host)
    assert host in said
    assert not (tmp_path / "data").exists()
    for no in ("0", "no", ""):
        refused(tmp_path, DRIFTQ_HOST=host, DRIFTQ_ALLOW_INSECURE_NO_AUTH=no, DRIFTQ_API_KEYS=" , ")


@pytest.mark.parametrize(
    "allowed",
    [{"DRIFTQ_API_KEYS": "k"}, {"DRIFTQ_ALLOW_INSECURE_NO_AUTH": "1"}, {"DRIFTQ_ALLOW_INSECURE_NO_AUTH": "true"}],
)
def test_an_open_address_with_keys_or_leave_is_served(tmp_path: Path, allowed: dict[str, str]) -> None:
    with serving(tmp_path, DRIFTQ_HOST="0.0.0.0", **allowed) as server:
        server.wait_ready()
        assert server.address.startswith("0.0.0.0:")


# --- settings -----------------------------------------------------------------------------------------------------


def test_a_flag_wins_over_the_environment(tmp_path: Path) -> None:
    port, other = free_port(), free_port()
    with serving(tmp_path, "--port", str(port), DRIFTQ_HOST=f"127.0.0.1:{other}", DRIFTQ_WAL_SHARDS="2") as server:
        server.wait_ready()
        assert server.address == f"127.0.0.1:{port}"
        assert sorted(path.name for path in (server.data_dir / "wal").iterdir()) == ["shard-00", "shard-01"]


def test_the_environment_alone_is_enough(tmp_path: Path) -> None:
    port = free_port()
    wanted = {
        "DRIFTQ_HOST": f"localhost:{port}",
        "DRIFTQ_DATA_DIR": str(tmp_path / "data"),
        "DRIFTQ_PORT_FILE": str(tmp_path / "port"),
    }
    command = [sys.executable, "-m", "driftq", "serve"]
    environment = process.environment(**wanted)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline()
            assert (tmp_path / "port").read_text(encoding="utf-8") == f"127.0.0.1:{port}"
        finally:
            server.terminate()
        assert server.wait(PATIENCE_S) == 0


def test_a_start_loads_nothing_heavy(tmp_path: Path) -> None:
    """pyarrow alone takes as long to import as a whole start may take."""
    command = [sys.executable, "-X", "importtime", "-m", "driftq", "serve", "--host", "0.0.0.0"]
    refusal = subprocess.run(
        command,
        env=process.environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in refusal.stderr.splitlines()}
    assert "driftq" in loaded
    assert not loaded & {"click", "hypothesis", "numpy", "pandas", "pyarrow", "pydantic", "rich", "typer"}


# --- the other commands -------------------------------------------------------------------------------------------


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "driftq", *arguments]
    return subprocess.run(
        command, env=process.environment(**variables), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_the_self_check_says_what_it_checked_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = run("selfcheck", TMPDIR=str(tmp_path), DRIFTQ_PORT="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(line.startswith("ok  ") for line in done.stdout.splitlines())
    assert os.listdir(tmp_path) == []
    told = run("selfcheck", "--json", TMPDIR=str(tmp_path))
    facts = json.decode(told.stdout, type=dict[str, object])
    assert (told.returncode, facts["ok"], facts["version"]) == (0, True, __version__)
    assert isinstance(facts["checks"], list)
    assert len(facts["checks"]) == len(done.stdout.splitlines())


def test_version_and_help(tmp_path: Path) -> None:
    assert run("--version").stdout == f"driftq {__version__}\n"
    for arguments in (("--help",), ("serve", "--help"), ("selfcheck", "--help")):
        shown = run(*arguments)
        assert shown.returncode == 0
        assert "Exit codes:" in shown.stdout
    assert "--segment-max-events" in run("serve", "--help").stdout
    assert run("no-such-command").returncode == 2
    assert run("serve", "--no-such-flag").returncode == 2


@pytest.mark.parametrize(("executable", "said"), [("/no/such/python", "No such file"), ("/bin/false", "did not start")])
def test_a_self_check_that_fails_says_so_in_one_line(
    executable: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    assert run_selfcheck(as_json=False) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("driftq: the self-check failed: ")
    assert said in shown.err
    assert (shown.out, shown.err.count("\n")) == ("", 1)
