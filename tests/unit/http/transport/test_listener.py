"""Which address is listened on, which one is refused, and the port file."""

import errno
import socket
from collections.abc import Callable

import pytest

from driftq.config import Settings
from driftq.errors import StartError
from driftq.http.transport.listener import ListenAddress, choose_address, write_port_file
from driftq.system.disk import read_file
from driftq.testing import FaultyDisk, SimDisk

Found = tuple[socket.AddressFamily, int, int, str, tuple[str, int]]


def resolving(*hosts: str) -> Callable[..., list[Found]]:
    """A resolver that knows one name."""

    def resolve(_: str, port: int, **__: object) -> list[Found]:
        if not hosts:
            raise socket.gaierror(socket.EAI_NONAME, "there is no such name")
        family = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(family[":" in host], 0, 0, "", (host, port)) for host in hosts]

    return resolve


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1"])
def test_a_loopback_address_needs_no_keys(host: str) -> None:
    address = choose_address(Settings(host=host, port=7))
    assert (address.host, address.port, address.loopback) == (host, 7, True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_any_other_address_needs_keys_or_leave(host: str) -> None:
    with pytest.raises(StartError, match="DRIFTQ_API_KEYS"):
        choose_address(Settings(host=host))
    assert choose_address(Settings(host=host, api_keys_given=True)).host == host
    assert choose_address(Settings(host=host, allow_insecure_no_auth=True)).host == host


def test_a_name_is_loopback_only_if_all_it_stands_for_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolving("127.0.0.1", "192.0.2.1"))
    with pytest.raises(StartError, match="two-faced"):
        choose_address(Settings(host="two-faced"))


def test_of_several_addresses_the_first_of_ipv4_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolving("::1", "127.0.0.1", "127.0.0.2"))
    assert str(choose_address(Settings(host="localhost", port=80))) == "127.0.0.1:80"


def test_a_name_that_stands_for_nothing_is_refused_with_keys_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolving())
    with pytest.raises(StartError, match="cannot listen on nowhere"):
        choose_address(Settings(host="nowhere", api_keys_given=True))


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(StartError, match="cannot listen"):
        choose_address(Settings(host="a" * 70))


def test_an_address_of_ipv6_stands_in_brackets() -> None:
    assert str(ListenAddress(socket.AF_INET6, "::1", 80)) == "[::1]:80"


def test_the_port_file_comes_whole_and_alone() -> None:
    seen: list[list[str]] = []
    disk = SimDisk(on_call=lambda *_: seen.append(disk.names("/data")))
    write_port_file(disk, "/data/port", ListenAddress(socket.AF_INET, "127.0.0.1", 80))
    assert read_file(disk, "/data/port") == b"127.0.0.1:80"
    assert [names for names in seen if "port" in names] == [["port"]]


def test_a_port_file_that_cannot_be_written_is_a_refusal_that_leaves_nothing() -> None:
    inner = SimDisk()
    disk = FaultyDisk(inner, error=errno.ENOSPC, when=lambda operation, _: operation == "pwritev")
    with pytest.raises(StartError, match="/nowhere/port"):
        write_port_file(disk, "/nowhere/port", ListenAddress(socket.AF_INET, "127.0.0.1", 80))
    with pytest.raises(StartError, match="/data/port"):
        write_port_file(disk, "/data/port", ListenAddress(socket.AF_INET, "127.0.0.1", 80))
    assert inner.names("/data") == []
