"""The address of a server, and everything that all requests to it share: key, timeout, TLS, proxy, headers."""

from base64 import b64encode
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from driftq import __version__
from driftq.system.http_client.http1 import Endpoint, Proxy, RequestHead

if TYPE_CHECKING:
    import ssl

_FIRST_SIGN, _LAST_SIGN = "!", "~"
"""The range of characters of an API key: those a header may have without quotes."""
_PORTS = {"http": 80, "https": 443}
_EXAMPLE = "expected http://HOST:PORT, such as http://127.0.0.1:4000"


class Tls(NamedTuple):
    """Certificates of an https connection, if not only those of the system are used."""

    ca_file: str | None = None
    """A PEM file with the certificates to trust instead of those of the system."""
    client_cert: str | tuple[str, str] | None = None
    """The certificate and the key of the client in PEM: one file with both, or two files."""

    def context(self) -> "ssl.SSLContext":
        """Return the TLS context for connections. Raise OSError for a file that cannot be used."""
        import ssl

        context = ssl.create_default_context(cafile=self.ca_file)
        if self.client_cert is not None:
            cert, key = (self.client_cert, None) if isinstance(self.client_cert, str) else self.client_cert
            context.load_cert_chain(cert, key)
        return context


class ServerAddress:
    """The address of one server, with the settings of all calls to it. Its `repr` never shows the API key."""

    def __init__(
        self, url: str, api_key: str | None, timeout_s: float, tls: Tls | None = None, proxy: str | None = None
    ) -> None:
        """Check the address and the key, and strip spaces around the key.

        Raise ValueError for one that cannot be used; its message never contains the key.
        """
        parts = _split(url, ("http", "https", "http+unix"), f"{url!r} is not the address of a server")
        key = (api_key or "").strip()
        if not all(_FIRST_SIGN <= sign <= _LAST_SIGN for sign in key):
            raise ValueError("the API key contains a space, a control character or a character that is not ASCII")
        headers = {"accept-encoding": "identity", "user-agent": f"driftq-python/{__version__}"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        self.api_key = key or None
        self.tls = tls
        self.proxy = proxy
        self.endpoint, prefix = _endpoint(parts, tls, proxy)
        if self.endpoint.proxy is not None and self.endpoint.tls is None:
            headers |= self.endpoint.proxy.headers
        host = "localhost" if self.endpoint.unix_path is not None else parts.netloc.rpartition("@")[2]
        self.head = RequestHead(host, headers, prefix)

    def __repr__(self) -> str:
        return f"Address({self.url!r})"


def _split(url: str, schemes: tuple[str, ...], problem: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{problem}: {error}") from None
    if parts.scheme not in schemes or not parts.hostname or port == 0:
        raise ValueError(f"{problem}: {_EXAMPLE}")
    if any(not sign >= "!" for sign in url):
        raise ValueError(f"{problem}: it contains a space or a control character")
    return parts


def _endpoint(parts: SplitResult, tls: Tls | None, proxy: str | None) -> tuple[Endpoint, str]:
    """Return the endpoint of connections, and the prefix of every request target."""
    assert parts.hostname is not None, "the address was checked"
    path = parts.path.rstrip("/")
    if parts.scheme == "http+unix":
        return Endpoint("localhost", 0, unix_path=unquote(parts.netloc)), path
    port = parts.port or _PORTS[parts.scheme]
    context = (tls or Tls()).context() if parts.scheme == "https" else None
    if proxy is None:
        return Endpoint(parts.hostname, port, context), path
    via = _split(proxy, ("http",), f"{_without_password(proxy)!r} is not the address of a proxy")
    assert via.hostname is not None, "the address was checked"
    headers = {}
    if via.username:
        credentials = f"{unquote(via.username)}:{unquote(via.password or '')}".encode()
        headers["proxy-authorization"] = f"Basic {b64encode(credentials).decode()}"
    endpoint = Endpoint(parts.hostname, port, context, proxy=Proxy(via.hostname, via.port or 80, headers))
    # Without TLS, a request to a proxy has the whole URL; with TLS, the proxy only forwards bytes.
    return endpoint, path if context is not None else f"http://{parts.netloc.rpartition('@')[2]}{path}"


def _without_password(proxy: str) -> str:
    before, at, host = proxy.rpartition("@")
    return f"{before.partition('//')[0]}//…@{host}" if at else proxy
