"""HTTP calls from Spark's processes to the server: JSON and Arrow over one kept-alive connection.

Executors may not have DriftQ installed, so this module uses only the standard library and can be pickled by value. If
the server is down, a call retries for up to `PATIENCE_S` (60 s), so a query survives a restart of the server. The API
key never appears in an error message.
"""

import json
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlsplit

from driftq.pipeline.errors import DeniedError, PipelineError, UnreachableError
from driftq.pipeline.first_contact import check_server

ARROW = "application/vnd.apache.arrow.stream"
PATIENCE_S = 60.0
_TIMEOUT_S = 60.0
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


class Wire:
    """A connection to one server. Can be pickled; the open socket is not pickled with it."""

    def __init__(self, server: str, api_key: str | None, *, patience_s: float = PATIENCE_S) -> None:
        parts = urlsplit(server if "://" in server else f"http://{server}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PipelineError(f"{server!r} is not a server URL (expected http://host:port)")
        self.server = f"{parts.scheme}://{parts.netloc}"
        self._prefix = parts.path.rstrip("/")
        self._api_key = api_key
        self._patience_s = patience_s
        self._open: HTTPConnection | None = None

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
        return Wire(server, self._api_key, patience_s=self._patience_s)

    def check(self) -> None:
        """Raise an error within 5 s if no server answers, or if the one that answers is not a DriftQ server."""
        check_server(self.server, self._prefix)

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
            except (OSError, HTTPException) as error:
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
            parts = urlsplit(self.server)
            kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
            self._open = kind(parts.netloc, timeout=_TIMEOUT_S)
        self._open.request(method, path, body, headers)
        reply = self._open.getresponse()
        return reply.status, reply.read()

    def close(self) -> None:
        """Close the connection. The next request opens a new one."""
        if self._open is not None:
            self._open.close()
            self._open = None


def _refusal(status: int, said: bytes) -> AnswerError:
    try:
        error = json.loads(said)
        if isinstance(error.get("error"), dict):
            error = error["error"]
        return AnswerError(status, str(error.get("code", status)), str(error.get("message", ""))[:500])
    except (ValueError, AttributeError):
        return AnswerError(status, str(status), said[:200].decode("utf-8", "replace"))
