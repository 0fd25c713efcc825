"""The server as Spark's processes reach it: JSON and Arrow over one kept connection, the standard library and no more.

This runs in executors that may have nothing of ours installed, so it is plain enough to travel by value. A server that
is away is waited for (`PATIENCE_S` in all): a query outlives a restart of the server. The API key is in no message.
"""

import json
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlsplit

from driftq.pipeline.errors import DeniedError, PipelineError, UnreachableError

ARROW = "application/vnd.apache.arrow.stream"
PATIENCE_S = 60.0
_TIMEOUT_S = 60.0
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0
_UNAVAILABLE = frozenset(("cold_unavailable", "segment_unavailable"))
"""The server answers, and cannot read these records now."""
_LATER = frozenset((429, 502, 503, 504, 507))
_DENIED = frozenset((401, 403))


def address_of(server: str) -> str:
    """Where a server is, without what a user may have put before its name."""
    parts = urlsplit(server if "://" in server else f"http://{server}")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


class AnswerError(PipelineError):
    """The server refused: what it said, under its own code."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.said = code


class Wire:
    """One server. May be pickled: the connection stays behind."""

    def __init__(self, server: str, api_key: str | None, *, patience_s: float = PATIENCE_S) -> None:
        parts = urlsplit(server if "://" in server else f"http://{server}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PipelineError(f"{server!r} is no address of a server: give http://host:port")
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
        """Another server, asked in the same way."""
        return Wire(server, self._api_key, patience_s=self._patience_s)

    def topic_path(self, topic: str, *more: str) -> str:
        """The path of something of a topic."""
        return "/".join(["/v0/topics", *(quote(part, safe="") for part in (topic, *more))])

    def get(self, path: str) -> dict[str, Any]:
        """A JSON answer."""
        return self._json("GET", path, None)

    def post(self, path: str, value: object) -> dict[str, Any]:
        """JSON for JSON. May be sent twice: for questions, and for what can be repeated."""
        return self._json("POST", path, value)

    def put(self, path: str, value: object, *, patient: bool = True) -> dict[str, Any]:
        """JSON for JSON. May be sent twice; who is not patient does not wait for a server that is away."""
        return self._json("PUT", path, value, patient=patient)

    def delete(self, path: str) -> dict[str, Any]:
        """JSON for nothing. It tidies up, so it does not wait for a server that is away."""
        return self._json("DELETE", path, None, patient=False)

    def send(self, path: str, body: bytes) -> dict[str, Any]:
        """JSON for an Arrow stream. May be sent twice."""
        return self._json("POST", path, body)

    def arrow(self, path: str, value: object) -> bytes:
        """An Arrow stream for JSON."""
        return self._ask("POST", path, value, accept=ARROW)

    def _json(self, method: str, path: str, value: object, *, patient: bool = True) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._ask(method, path, value, accept="application/json", patient=patient))
        return found

    def _ask(self, method: str, path: str, value: object, *, accept: str, patient: bool = True) -> bytes:
        """The body of a 2xx. Raises AnswerError, DeniedError, or UnreachableError when nobody answers for too long."""
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
                    continue  # a server may end a connection that rests; that says nothing about the server
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
        """Return what a call ends with that was tried again for too long."""
        if failure is not None and failure.said in _UNAVAILABLE:
            return AnswerError(failure.status, failure.said, f"{failure.message}; nothing is lost")
        return UnreachableError(
            f"the server at {self.server} does not answer: {why}; is it running, and is this its address?"
        )

    def _final(self, failure: AnswerError) -> PipelineError:
        """A refusal that is no reason to ask again."""
        if failure.status not in _DENIED:
            return failure
        return DeniedError(
            f"the server at {self.server} says {failure.message!r}: set DRIFTQ_API_KEY to a key that may"
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
        """Let the connection go; the next request opens another."""
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
