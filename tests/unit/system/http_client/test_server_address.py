"""Where a client goes and with which key: what cannot be either is told when the client is made, the key never."""

import pytest

from driftq.client import AsyncClient, Client
from driftq.system.http_client.server_address import ServerAddress, Tls
from tests.support.hostile_server import CERTIFICATE


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("url", ["http://127.0.0.1:abc", "http://[::1", "ftp://here", "127.0.0.1:4000", "http://"])
def test_what_is_no_address_is_refused_at_once(kind: type[Client] | type[AsyncClient], url: str) -> None:
    with pytest.raises(ValueError, match="is not the address of a server"):
        kind(url)


@pytest.mark.parametrize("key", ["sésame", "ses\name", "ses ame", "\x00"])
def test_what_cannot_be_a_key_is_refused_and_not_told(key: str) -> None:
    with pytest.raises(ValueError, match="API key") as refused:
        Client("http://127.0.0.1:1", key)
    assert key not in str(refused.value)


def test_blanks_around_a_key_are_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that is mounted or set by a tool often ends with the end of its line."""
    assert ServerAddress("http://here/", " sesame\r\n", 1.0).api_key == "sesame"
    assert ServerAddress("http://here", "\n", 1.0).api_key is None
    monkeypatch.setenv("DRIFTQ_API_KEY", "sesame\n")
    Client("http://127.0.0.1:1").close()


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_the_environment_says_how_to_reach_the_server(
    kind: type[Client] | type[AsyncClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIFTQ_PROXY", "http://proxy.test:3128")
    monkeypatch.setenv("DRIFTQ_CLIENT_CERT", CERTIFICATE)
    monkeypatch.setenv("DRIFTQ_CA_FILE", CERTIFICATE)
    assert kind("https://server.test")._address.tls == Tls(CERTIFICATE, CERTIFICATE)
    assert kind("https://server.test")._address.endpoint.dialled == ("proxy.test", 3128)
    assert kind("https://server.test", proxy="")._address.endpoint.dialled == ("server.test", 443)
    monkeypatch.setenv("DRIFTQ_CA_FILE", "/absent.pem")
    with pytest.raises(OSError, match="No such file"):
        kind("https://server.test")
    kind("https://server.test", ca_file=CERTIFICATE)
