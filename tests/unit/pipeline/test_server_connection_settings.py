"""The two connections of Spark's processes, installed and of the standard library, accept the same settings."""

import pickle
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark import cloudpickle

import driftq
from driftq.pipeline.errors import PipelineError, UnreachableError
from driftq.pipeline.server_connection import Wire
from driftq.pipeline.standard_connection import ServerAccess
from tests.support.hostile_server import CERTIFICATE, heard, hostile, reply

TIMEOUT_S = 1.0


@pytest.fixture(params=["installed", "standard library"], autouse=True)
def connection(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "installed":
        monkeypatch.setitem(sys.modules, "driftq.system.http_client.http_blocking", None)


@contextmanager
def answering(
    *, tls: bool = False, tunnel: bool = False, listener: socket.socket | None = None
) -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers every request with the number of its connection; its address, and the heads it got."""
    heads: list[bytes] = []
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=CERTIFICATE)
    context.load_cert_chain(CERTIFICATE)
    context.verify_mode = ssl.CERT_REQUIRED

    def play(connection: socket.socket, number: int) -> None:
        if tunnel:
            heads.append(heard(connection))
            connection.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
        with context.wrap_socket(connection, server_side=True) if tls else connection as line:
            while True:
                heads.append(heard(line))
                line.sendall(reply(b'{"connection": %d}' % number))

    with hostile(play, listener) as url:
        yield url.replace("http:", "https:") if tls else url, heads


def test_the_connection_is_kept() -> None:
    with answering() as (url, _), Wire(url, None, patience_s=0) as wire:
        assert [wire.get("/x") for _ in range(3)] == [{"connection": 0}] * 3


def test_an_answer_that_ends_its_connection_is_whole() -> None:
    def play(connection: socket.socket, number: int) -> None:
        heard(connection)
        connection.sendall(reply(b'{"connection": %d}' % number, b"connection: close\r\n"))

    with hostile(play) as url, Wire(url, None, patience_s=0) as wire:
        assert [wire.get("/x") for _ in range(2)] == [{"connection": 0}, {"connection": 1}]


@pytest.mark.parametrize("through_proxy", [False, True], ids=["straight", "by proxy"])
def test_tls_is_checked_both_ways(*, through_proxy: bool) -> None:
    with answering(tls=True, tunnel=through_proxy) as (url, heads):
        proxy = url.replace("https://", "http://me:secret@") if through_proxy else None
        with Wire(url, "key", patience_s=0, access=ServerAccess(CERTIFICATE, CERTIFICATE, proxy)) as wire:
            assert [wire.get("/x") for _ in range(2)] == [{"connection": 0}] * 2
        assert b"bearer key" in heads[-1].lower()
        if through_proxy:
            assert heads[0].startswith(b"CONNECT 127.0.0.1:")
            assert b"basic bwu6c2vjcmv0" in heads[0].lower()
            assert b"bearer" not in heads[0].lower()
        for access in (ServerAccess(None, CERTIFICATE, proxy), ServerAccess(CERTIFICATE, None, proxy)):
            with Wire(url, None, patience_s=0, access=access) as wire, pytest.raises(UnreachableError):
                wire.get("/x")


def test_a_proxy_is_asked_for_the_whole_address() -> None:
    with answering() as (url, heads):
        access = ServerAccess(proxy=url.replace("http://", "http://me:secret@"))
        with Wire("http://driftq.example:4000/below", None, patience_s=0, access=access) as wire:
            assert wire.get("/x?y=1") == {"connection": 0}
        (head,) = heads
        assert head.startswith(b"GET http://driftq.example:4000/below/x?y=1 HTTP/1.1\r\n")
        assert b"\r\nhost: driftq.example:4000\r\n" in head.lower()
        assert b"\r\nproxy-authorization: basic bwu6c2vjcmv0\r\n" in head.lower()


def test_a_unix_socket_is_an_address(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    with answering(listener=listener) as (url, _), Wire(url, None, patience_s=0) as wire:
        assert wire.get("/x") == {"connection": 0}


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n"], ids=["head", "body"])
def test_the_timeout_is_that_of_the_whole_try(said: bytes) -> None:
    over = threading.Event()

    def play(connection: socket.socket, _: int) -> None:
        heard(connection)
        connection.sendall(said)
        for byte in b"x" * 1000 if said else b"HTTP/1.1 200 OK\r\nx: " + b"x" * 1000:
            connection.sendall(bytes([byte]))
            if over.wait(0.1):
                return

    since = time.monotonic()
    with (
        hostile(play) as url,
        Wire(url, None, patience_s=0, timeout_s=TIMEOUT_S) as wire,
        pytest.raises(UnreachableError),
    ):
        wire.get("/x")
    over.set()
    assert time.monotonic() - since < TIMEOUT_S + 1.0


def test_the_environment_says_how_to_reach_the_server_also_where_the_connection_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with answering(tls=True) as (url, _):
        monkeypatch.setenv("DRIFTQ_CA_FILE", CERTIFICATE)
        monkeypatch.setenv("DRIFTQ_CLIENT_CERT", CERTIFICATE)
        sent = pickle.dumps(Wire(url, None, patience_s=0))
        monkeypatch.delenv("DRIFTQ_CA_FILE")
        monkeypatch.delenv("DRIFTQ_CLIENT_CERT")
        with pickle.loads(sent) as wire:
            assert wire.get("/x") == {"connection": 0}


def test_a_file_that_does_not_exist_is_an_error_at_once_that_names_it(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent.pem")
    with (
        Wire("https://127.0.0.1:1", None, access=ServerAccess(absent)) as wire,
        pytest.raises(PipelineError, match=r"absent\.pem cannot be used to reach https://127\.0\.0\.1:1: .*executor"),
    ):
        wire.get("/x")


_EXECUTOR = """
import sys
from pyspark import cloudpickle
for absent in ("driftq", "httptools", "msgspec"):
    sys.modules[absent] = None
wire = cloudpickle.loads(sys.stdin.buffer.read())
print(wire.get("/x"))
"""


def test_an_executor_without_the_package_reaches_the_server() -> None:
    with answering(tls=True) as (url, _):
        cloudpickle.register_pickle_by_value(driftq)
        try:
            sent = cloudpickle.dumps(Wire(url, None, patience_s=0, access=ServerAccess(CERTIFICATE, CERTIFICATE)))
        finally:
            cloudpickle.unregister_pickle_by_value(driftq)
        found = subprocess.run([sys.executable, "-c", _EXECUTOR], input=sent, capture_output=True, check=False)
    assert (found.stdout.decode(), found.stderr.decode()[-500:]) == ("{'connection': 0}\n", "")
