"""HTTP calls from Spark's processes to the server: JSON and Arrow over one kept-alive connection.

The connection is that of `system/http_client`. Executors may not have DriftQ installed; then this module is pickled by
value and uses `standard_connection`, with the same settings. If the server is down, a call retries for up to
`PATIENCE_S` (60 s), so a query survives a restart of the server. The API key never appears in an error message.
"""

import json
import os
import time
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from driftq.pipeline.errors import DeniedError, PipelineError, UnreachableError
from driftq.pipeline.first_contact import HEALTH, check_server
from driftq.pipeline.standard_connection import ServerAccess, StandardConnection

ARROW = "application/vnd.apache.arrow.stream"
PATIENCE_S = 60.0
_TIMEOUT_S = 60.0
"""Seconds for one try of a call, from connecting to the last byte of the answer."""
_SCHEMES = ("http", "https", "http+unix")
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0
_UNAVAILABLE = frozenset(("cold_unavailable", "segment_unavailable"))
"""Error codes of a server that answers, but cannot read these records at the moment."""
_LATER = frozenset((429, 502, 503, 504, 507))
_DENIED = frozenset((401, 403))


def address_of(server: str) -> str:
    """Return the URL of a server without a user name or password, and without a trailing slash."""
    parts = urlsplit(server if "://" in server else f"http://{server}")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


class AnswerError(PipelineError):
    """The server rejected the request. Has the HTTP status, and the server's error code and message."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.said = code


class HttpConnection(Protocol):
    """A connection to one server, kept open between exchanges."""

    def exchange(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None, deadline: float
    ) -> tuple[int, bytes]:
        """Send a request and return status and body of the answer. Raise OSError."""
        ...

    def close(self) -> None:
        """Close the connection. The next exchange opens a new one."""
        ...


def access_of_environment() -> ServerAccess:
    """Return how to reach the server, as a client reads it from the environment."""
    found = (os.environ.get(name) or None for name in ("DRIFTQ_CA_FILE", "DRIFTQ_CLIENT_CERT", "DRIFTQ_PROXY"))
    return ServerAccess(*found)


class Wire:
    """A connection to one server. Can be pickled; the open socket is not pickled with it.

    Without `access`, the environment of the process that makes it decides how to reach the server.
    """

    def __init__(
        self,
        server: str,
        api_key: str | None,
        *,
        patience_s: float = PATIENCE_S,
        timeout_s: float = _TIMEOUT_S,
        access: ServerAccess | None = None,
    ) -> None:
        parts = urlsplit(server if "://" in server else f"http://{server}")
        if parts.scheme not in _SCHEMES or not parts.hostname:
            raise PipelineError(f"{server!r} is not a server URL (expected http://host:port)")
        self.server = f"{parts.scheme}://{parts.netloc}"
        self._prefix = parts.path.rstrip("/")
        self._api_key = api_key
        self._patience_s = patience_s
        self._timeout_s = timeout_s
        self._access = access_of_environment() if access is None else access
        self._open: HttpConnection | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": None}

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Wire({self.server!r})"

    def elsewhere(self, server: str) -> "Wire":
        """Return a connection to another server, with the same API key and patience."""
        return Wire(server, self._api_key, patience_s=self._patience_s, timeout_s=self._timeout_s, access=self._access)

    def check(self) -> None:
        """Raise an error within 5 s if no server answers, or if the one that answers is not a DriftQ server."""
        check_server(self.server, self._ask_health)

    def _ask_health(self, deadline: float) -> tuple[int, bytes]:
        connection = _opened(self.server, self._access)
        try:
            return connection.exchange("GET", self._prefix + HEALTH, {}, None, deadline)
        finally:
            connection.close()

    def topic_path(self, topic: str, *more: str) -> str:
        """Return the URL path of a topic, or of something below it, with every part percent-encoded."""
        return "/".join(["/v0/topics", *(quote(part, safe="") for part in (topic, *more))])

    def get(self, path: str) -> dict[str, Any]:
        """Send a GET request and return its JSON answer."""
        return self._json("GET", path, None)

    def post(self, path: str, value: object) -> dict[str, Any]:
        """Post JSON and return the JSON answer. May send the request twice, so it must be repeatable."""
        return self._json("POST", path, value)

    def put(self, path: str, value: object, *, patient: bool = True) -> dict[str, Any]:
        """Put JSON and return the JSON answer. May send it twice. With `patient=False`, there are no retries."""
        return self._json("PUT", path, value, patient=patient)

    def delete(self, path: str) -> dict[str, Any]:
        """Send a DELETE request for cleanup and return its JSON answer. A server that is down is not retried."""
        return self._json("DELETE", path, None, patient=False)

    def send(self, path: str, body: bytes) -> dict[str, Any]:
        """Post an Arrow stream and return the JSON answer. May send the request twice."""
        return self._json("POST", path, body)

    def arrow(self, path: str, value: object) -> bytes:
        """Post JSON and return the Arrow stream of the answer."""
        return self._ask("POST", path, value, accept=ARROW)

    def _json(self, method: str, path: str, value: object, *, patient: bool = True) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._ask(method, path, value, accept="application/json", patient=patient))
        return found

    def _ask(self, method: str, path: str, value: object, *, accept: str, patient: bool = True) -> bytes:
        """Return the body of a 2xx answer. Raises AnswerError, DeniedError, or UnreachableError when retries end."""
        headers = {"Accept": accept}
        body: bytes | None = None
        if value is not None:
            body = value if isinstance(value, bytes) else json.dumps(value).encode()
            headers["Content-Type"] = ARROW if isinstance(value, bytes) else "application/json"
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        end, wait = time.monotonic() + (self._patience_s if patient else 0), _FIRST_WAIT_S
        while True:
            kept = self._open is not None
            try:
                status, said = self._once(method, self._prefix + path, body, headers)
            except OSError as error:
                self.close()
                if kept:
                    continue  # a server may close an idle connection; this is not a sign that the server is down
                why, failure = str(error) or type(error).__name__, None
            else:
                if status < 300:
                    return said
                failure = _refusal(status, said)
                if status not in _LATER:
                    raise self._final(failure)
                why = f"{failure.said}: {failure.message}"
            if time.monotonic() + wait > end:
                raise self._too_long(why, failure) from failure
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)

    def _too_long(self, why: str, failure: AnswerError | None) -> PipelineError:
        """Return the error for a call whose retries have run out of time."""
        if failure is not None and failure.said in _UNAVAILABLE:
            return AnswerError(failure.status, failure.said, f"{failure.message}; no records are lost")
        return UnreachableError(
            f"the server at {self.server} does not answer: {why}; check that it runs and that the address is right"
        )

    def _final(self, failure: AnswerError) -> PipelineError:
        """Return the error for an answer that a retry cannot change; 401 and 403 become DeniedError."""
        if failure.status not in _DENIED:
            return failure
        return DeniedError(
            f"the server at {self.server} denied access ({failure.message}): set DRIFTQ_API_KEY to another key"
        )

    def _once(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        if self._open is None:
            self._open = _opened(self.server, self._access)
        return self._open.exchange(method, path, headers, body, time.monotonic() + self._timeout_s)

    def close(self) -> None:
        """Close the connection. The next request opens a new one."""
        if self._open is not None:
            self._open.close()
            self._open = None


class _InstalledConnection:
    """A connection with the HTTP client of the installed package. Raise ImportError if that is not installed."""

    def __init__(self, server: str, access: ServerAccess) -> None:
        from driftq.system.http_client.http_blocking import BlockingPool
        from driftq.system.http_client.server_address import ServerAddress, Tls

        address = ServerAddress(server, None, 0.0, Tls(access.ca_file, access.client_cert), access.proxy)
        self._head = address.head
        self._pool = BlockingPool(address.endpoint)

    def exchange(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None, deadline: float
    ) -> tuple[int, bytes]:
        """Send a request and return status and body of the answer. Raise OSError."""
        from driftq.system.http_client.http1 import HttpError

        head = self._head.request(method, path, {}, headers, body)
        try:
            connection = self._pool.take()
            try:
                status, _, content = connection.exchange(method, head, body, deadline)
            finally:
                self._pool.give_back(connection)
        except HttpError as error:
            raise OSError(str(error)) from error
        return status, bytes(content)

    def close(self) -> None:
        """Close the connection; it cannot be used afterwards."""
        self._pool.close()


def _opened(server: str, access: ServerAccess) -> HttpConnection:
    try:
        try:
            return _InstalledConnection(server, access)
        except ImportError:  # an executor without DriftQ, or without httptools
            return StandardConnection(server, access)
    except (OSError, ValueError) as error:  # nothing is connected yet
        named = " and ".join(filter(None, (access.ca_file, access.client_cert))) or "the proxy"
        raise PipelineError(
            f"{named} cannot be used to reach {server}: {error}; the files of DRIFTQ_CA_FILE and DRIFTQ_CLIENT_CERT"
            " must exist at the same path on every executor"
        ) from error


def _refusal(status: int, said: bytes) -> AnswerError:
    try:
        error = json.loads(said)
        if isinstance(error.get("error"), dict):
            error = error["error"]
        return AnswerError(status, str(error.get("code", status)), str(error.get("message", ""))[:500])
    except (ValueError, AttributeError):
        return AnswerError(status, str(status), said[:200].decode("utf-8", "replace"))
