"""A client of the broker API, written from http-v1 §21.1: what the published Python SDK sends, parses and retries.

It is told nothing of this server beyond its address: what it needs is what real clients need.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from socket import SHUT_RDWR
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct, json

TIMEOUT_S = 10.0
TRIES = 3
REASON_BYTES_MAX = 1024

_RETRIED = (429, 500, 502, 503, 504)
_PAUSE_S = 0.1


class BrokerError(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message


class Item(Struct, frozen=True):
    """One line of a stream. The six keys are always there; a client that meets another passes it over."""

    partition: int
    offset: int
    attempts: int
    key: str
    value: str
    last_error: str
    routing: dict[str, Any] = {}
    envelope: dict[str, Any] = {}


class Client:
    """Calls to one server."""

    def __init__(self, address: str) -> None:
        self._address = address

    def healthy(self) -> bool:
        """Does it answer?"""
        return bool(self._call("GET", "/v1/healthz") == {"status": "ok"})

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """By hand, as the SDK has no call for it."""
        self._call("POST", "/v1/topics", {"name": name, "partitions": partitions})

    def produce(self, topic: str, value: str, *, key: str | None = None, **envelope: Any) -> None:
        """Send a message; one with an idempotency key is sent again where that may help."""
        body: dict[str, Any] = {"topic": topic, "value": value}
        if key:
            body["key"] = key
        given = {name: member for name, member in envelope.items() if member}
        if given:
            body["envelope"] = given
        self._call("POST", "/v1/produce", body, idempotency_key=given.get("idempotency_key"))

    def ack(self, topic: str, group: str, owner: str, item: Item) -> None:
        """It is done."""
        self._call("POST", "/v1/ack", _place(topic, group, owner, item))

    def nack(self, topic: str, group: str, owner: str, item: Item, reason: str = "") -> None:
        """It failed."""
        place = _place(topic, group, owner, item)
        cut = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
        self._call("POST", "/v1/nack", place | ({"reason": cut} if cut else {}))

    def consume(self, topic: str, group: str, owner: str, lease_ms: int | None = None) -> "Consuming":
        """An open stream; it has no timeout, for the server decides when it speaks."""
        return Consuming(self._address, topic, group, owner, lease_ms)

    def _call(self, method: str, path: str, body: Any = None, *, idempotency_key: str | None = None) -> Any:
        tries = TRIES if method == "GET" or idempotency_key else 1
        for left in range(tries - 1, -1, -1):
            try:
                return self._once(method, path, body, idempotency_key)
            except BrokerError as error:
                if not left or error.status not in _RETRIED:
                    raise
            except (OSError, HTTPException):
                if not left:
                    raise
            time.sleep(_PAUSE_S)
        raise AssertionError("unreachable")

    def _once(self, method: str, path: str, body: Any, idempotency_key: str | None) -> Any:
        headers = {"content-type": "application/json"} if body is not None else {}
        if idempotency_key:
            headers["idempotency-key"] = idempotency_key
        connection = HTTPConnection(self._address, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, None if body is None else json.encode(body), headers)
            reply = connection.getresponse()
            data = reply.read()
        finally:
            connection.close()
        if reply.status == 204:
            return None
        parsed = json.decode(data)
        if reply.status >= 300:
            raise BrokerError(reply.status, parsed["error"], parsed["message"])
        return parsed


class Consuming:
    """A stream, as an iterator of its items."""

    def __init__(self, address: str, topic: str, group: str, owner: str, lease_ms: int | None) -> None:
        query: dict[str, Any] = {"topic": topic, "group": group, "owner": owner}
        if lease_ms is not None:
            query["lease_ms"] = lease_ms
        self._connection = HTTPConnection(address)
        self._connection.connect()
        self._socket = self._connection.sock
        self._connection.request("GET", f"/v1/consume?{urlencode(query)}", headers={"accept": "application/x-ndjson"})
        self._reply: HTTPResponse = self._connection.getresponse()
        if self._reply.status != 200:
            parsed = json.decode(self._reply.read())
            self.close()
            raise BrokerError(self._reply.status, parsed["error"], parsed["message"])

    def __iter__(self) -> Iterator[Item]:
        while line := self._reply.readline():
            if line.strip():
                yield json.decode(line, type=Item)

    def hang_up(self) -> None:
        """Whoever reads in another thread finds the end."""
        with suppress(OSError):
            self._socket.shutdown(SHUT_RDWR)

    def close(self) -> None:
        """Let go."""
        self.hang_up()
        self._reply.close()
        self._connection.close()

    def __enter__(self) -> Iterator[Item]:
        return iter(self)

    def __exit__(self, *_: object) -> None:
        self.close()


class Worker:
    """Reads ahead, handles each item in a thread of its own, acks what worked and nacks what did not.

    An ack that fails is followed by a nack: the work would otherwise be lost until the lease ends.
    """

    def __init__(
        self, client: Client, topic: str, group: str, owner: str, handle: Callable[[Item], None], *, threads: int = 4
    ) -> None:
        self._client = client
        self._place = topic, group, owner
        self._handle = handle
        self._pool = ThreadPoolExecutor(threads)
        self._stream = client.consume(topic, group, owner, lease_ms=30_000)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def stop(self) -> None:
        """Take nothing more, and finish what was taken."""
        self._stream.hang_up()
        self._reader.join()
        self._pool.shutdown()

    def wait_ended(self, timeout: float) -> bool:
        """Has the server ended the stream?"""
        self._reader.join(timeout)
        return not self._reader.is_alive()

    def _read(self) -> None:
        try:
            for item in self._stream:
                self._pool.submit(self._work, item)
        except (OSError, HTTPException):
            pass  # it was cut off under its reader
        finally:
            self._stream.close()

    def _work(self, item: Item) -> None:
        try:
            self._handle(item)
            self._client.ack(*self._place, item)
        except Exception as error:  # noqa: BLE001  # whatever the handler did, the message is not lost
            self._client.nack(*self._place, item, str(error))


def _place(topic: str, group: str, owner: str, item: Item) -> dict[str, Any]:
    return {"topic": topic, "group": group, "owner": owner, "partition": item.partition, "offset": item.offset}
