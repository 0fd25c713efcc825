"""`driftq export` and `driftq import`: what goes out comes in again, once."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import json

from driftq.cli.data.import_files import _bodies
from tests.support.command_line import CommandLine
from tests.support.process import ServerProcess, serving

pytestmark = pytest.mark.slow

_RECORDS = 1200


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for the module, with a topic that has every column, deletes and a gap."""
    with serving(tmp_path_factory.mktemp("server")) as server:
        server.wait_ready()
        records = [
            {"data": {"n": n, "text": 'größe "q"'}, "tag": f"t{n}", "node": "n1" if n % 2 else None}
            | ({"meta": {"k": "v"}} if n % 3 else {})
            for n in range(_RECORDS)
        ]
        for first in range(0, _RECORDS, 600):
            body = {"records": records[first : first + 600]}
            assert server.ask("POST", "/v0/topics/source", body)[0] in (200, 201)
        assert server.ask("POST", "/v0/topics/source/delete", {"match": "t7"})[0] == 200
        capped = {"config": {"cap_records": 5}, "records": [{"data": n} for n in range(9)]}
        assert server.ask("POST", "/v0/topics/capped", capped)[0] in (200, 201)
        yield server


@pytest.fixture
def driftq(
    server: ServerProcess, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """Commands for it."""
    monkeypatch.setenv("DRIFTQ_URL", f"http://{server.address}")
    return CommandLine(server, capfdbinary)


def _columns(driftq: CommandLine, topic: str, path: Path) -> list[tuple[object, ...]]:
    driftq.ok("export", topic, "-o", str(path))
    table = pq.read_table(path)
    return list(zip(*(table[name].to_pylist() for name in ("node", "tag", "meta", "data")), strict=True))


@pytest.mark.parametrize("name", ["out.ndjson", "out.arrow", "out.parquet"])
def test_what_is_exported_can_be_imported_with_all_its_columns(driftq: CommandLine, tmp_path: Path, name: str) -> None:
    told = driftq.ok("export", "source", "-o", str(tmp_path / name), "--json").json
    assert (told["records"], told["gaps"]) == (_RECORDS - 1, 0)
    topic = f"copy-{name.rpartition('.')[2]}"
    (row,) = driftq.ok("import", str(tmp_path / name), "--topic", topic, "--json").json
    assert (row["records"], row["there_before"]) == (_RECORDS - 1, 0)
    before = _columns(driftq, "source", tmp_path / "a.parquet")
    assert _columns(driftq, topic, tmp_path / "b.parquet") == before
    (row,) = driftq.ok("import", str(tmp_path / name), "-t", topic, "--json").json
    assert (row["records"], row["there_before"]) == (0, _RECORDS - 1)
    assert len(_columns(driftq, topic, tmp_path / "c.parquet")) == _RECORDS - 1


def test_an_interrupted_import_goes_on_where_it_stopped(
    driftq: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driftq.cli.data.import_files._BATCH_RECORDS", 100)
    lines = [json.encode({"data": n}) for n in range(950)]
    path = tmp_path / "lines.ndjson"
    path.write_bytes(b"\n".join(lines))
    count = iter(range(4))
    with monkeypatch.context() as broken:
        broken.setattr("driftq.cli.data.import_files._bodies", lambda table: _bodies_then_stop(table, count))
        assert driftq("import", str(path), "-t", "interrupted").code == 130
    (row,) = driftq.ok("import", str(path), "-t", "interrupted", "--json").json
    assert (row["records"], row["there_before"]) == (650, 300)
    driftq.ok("export", "interrupted", "-o", str(tmp_path / "back.parquet"))
    assert pq.read_table(tmp_path / "back.parquet")["data"].to_pylist() == [str(n) for n in range(950)]


def _bodies_then_stop(table: pa.Table, count: Iterator[int]) -> Iterator[bytes]:
    if next(count) == 3:
        raise KeyboardInterrupt
    yield from _bodies(table)


def test_what_was_lost_is_told_by_the_file(driftq: CommandLine, tmp_path: Path) -> None:
    lines = driftq.ok("export", "capped").out.splitlines()
    assert [json.decode(line).get("$seq") for line in lines] == [5, 5, 6, 7, 8, 9]
    assert json.decode(lines[0])["$type"] == "tombstone"
    driftq.ok("export", "capped", "-o", str(tmp_path / "c.parquet"))
    told = json.decode(pq.read_metadata(tmp_path / "c.parquet").metadata[b"driftq.tombstones"])
    assert [gap["reason"] for gap in told] == ["cap"]
    (tmp_path / "c.ndjson").write_text("\n".join(lines))
    (row,) = driftq.ok("import", str(tmp_path / "c.ndjson"), "-t", "from-capped", "--json").json
    assert row["records"] == 5


def test_a_table_of_anything_becomes_objects(driftq: CommandLine, tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2], "b": ["x", None]}), tmp_path / "any.parquet")
    driftq.ok("import", str(tmp_path / "any.parquet"), "--topic", "any")
    lines = [json.decode(line) for line in driftq.ok("export", "any").out.splitlines()]
    assert [line["data"] for line in lines] == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]


def test_what_cannot_be_read_is_one_line(driftq: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "bad.ndjson").write_text('{"data":1}\n17\n')
    for path in ("bad.ndjson", "absent.parquet"):
        done = driftq("import", str(tmp_path / path), "-t", "bad")
        assert (done.code, done.err.count("\n")) == (6, 1)
    assert "line 2 of" in driftq("import", str(tmp_path / "bad.ndjson"), "-t", "bad").err
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    assert driftq("import", str(tmp_path / "bad.parquet"), "-t", "bad").code == 6
    assert driftq("export", "no-such-topic", "-o", str(tmp_path / "x.parquet")).code == 5
    assert not (tmp_path / "x.parquet").exists()


def test_a_device_or_a_pipe_is_written_to_and_never_replaced(driftq: CommandLine, tmp_path: Path) -> None:
    """`-o /dev/null` of a mighty user must not make a file of it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        driftq.ok("export", "capped", "-o", str(pipe))
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        assert os.read(reader, 1 << 16).count(b"\n") == 6
    finally:
        os.close(reader)
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_link_stays_one_and_what_it_names_is_written(driftq: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "real.ndjson").write_bytes(b"old")
    (tmp_path / "link.ndjson").symlink_to("real.ndjson")
    driftq.ok("export", "capped", "-o", str(tmp_path / "link.ndjson"))
    assert (tmp_path / "link.ndjson").is_symlink()
    assert (tmp_path / "real.ndjson").read_bytes().count(b"\n") == 6


@pytest.mark.parametrize("line", [b'{"data":"\xff"}', b'{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}"])
def test_a_line_that_no_server_takes_is_told_by_its_number(driftq: CommandLine, tmp_path: Path, line: bytes) -> None:
    (tmp_path / "odd.ndjson").write_bytes(b'{"data":1}\n' + line + b"\n")
    done = driftq("import", str(tmp_path / "odd.ndjson"), "-t", "odd")
    assert (done.code, done.err.count("\n")) == (6, 1)
    assert "line 2 of" in done.err


@pytest.mark.parametrize("data", [pa.array([1, 2]), pa.array(["plain", "text"]), pa.array(["1", None])])
def test_a_column_of_data_that_is_no_json_is_bad_input_by_the_name_of_its_file(
    driftq: CommandLine, tmp_path: Path, data: "pa.Array[pa.Scalar[pa.DataType]]"
) -> None:
    pq.write_table(pa.table({"data": data}), tmp_path / "odd.parquet")
    done = driftq("import", str(tmp_path / "odd.parquet"), "-t", "odd")
    assert (done.code, done.err.count("\n")) == (6, 1)
    assert "odd.parquet" in done.err


def test_labels_of_few_words_as_pandas_writes_them_go_in(driftq: CommandLine, tmp_path: Path) -> None:
    table = pa.table({"data": ["1", "2"], "tag": pa.array(["a", "a"]).dictionary_encode()})
    pq.write_table(table, tmp_path / "few.parquet")
    driftq.ok("import", str(tmp_path / "few.parquet"), "-t", "few")
    assert [json.decode(line)["$tag"] for line in driftq.ok("export", "few").out.splitlines()] == ["a", "a"]


@pytest.mark.parametrize("path", ["/dev/stdin", "-"])
def test_a_stream_is_refused_because_it_cannot_be_read_twice(driftq: CommandLine, path: str) -> None:
    """Not a word of it would be imported otherwise, and nobody told."""
    done = driftq.apart("import", path, "-t", "streamed", given=b'{"data":1}\n')
    assert (done.code, done.err.count("\n")) == (6, 1)
    assert "driftq append" in done.err
