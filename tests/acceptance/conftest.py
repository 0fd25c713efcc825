"""A server for the tests of a module, and the command line and a client in front of it."""

from collections.abc import Iterator

import pytest

from driftq.client import Client
from tests.support.command_line import CommandLine
from tests.support.process import ServerProcess, serving


@pytest.fixture(scope="module")
def cli_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of this module alone."""
    with serving(tmp_path_factory.mktemp("cli")) as process:
        process.wait_ready()
        yield process


@pytest.fixture
def cli(
    cli_server: ServerProcess, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """Commands for it."""
    monkeypatch.setenv("DRIFTQ_URL", f"http://{cli_server.address}")
    monkeypatch.delenv("DRIFTQ_API_KEY", raising=False)
    return CommandLine(cli_server, capfdbinary)


@pytest.fixture
def url(cli_server: ServerProcess) -> str:
    """Its address."""
    return f"http://{cli_server.address}"


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    """A client of it."""
    with Client(url) as client:
        yield client
