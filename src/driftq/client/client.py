"""`Client` and `AsyncClient`: the calls that concern a server as a whole (http-v0 §6.3, §11, §12, §17), and the access
to its topics and its broker.
"""

import os
from collections.abc import AsyncIterable, Iterable, Mapping
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.json import encode

from driftq.client.broker import AsyncBroker, Broker
from driftq.client.node_name import NodeName
from driftq.client.topics.pages import Nodes
from driftq.client.topics.topic import AsyncTopic, Topic
from driftq.client.topics.watch import Starts, Watched, watched
from driftq.client.transport.calls import JSON, Calls, decoded, path_of, query_of
from driftq.client.transport.closing import AsyncClosing, Closing
from driftq.client.transport.drivers import AsyncDriver, Driver
from driftq.client.transport.operations import Async, Blocking, Operations, flow, operation
from driftq.client.transport.plan import Flow, Plan, Request, Response
from driftq.client.transport.retry import Repeat, Retries
from driftq.model.router_spec import Filter, Guarantee
from driftq.model.v0_additions import BackupList, BackupState
from driftq.model.v0_answers import (
    Health,
    Readiness,
    RouterDeleted,
    RouterList,
    RouterPut,
    RouterRow,
    RouterState,
    TopicList,
    TopicRow,
)
from driftq.system.entropy import SystemEntropy
from driftq.system.http_client.request_body import Body
from driftq.system.http_client.server_address import ServerAddress, Tls

DEFAULT_URL = "http://127.0.0.1:4000"
_TIMEOUT_S = 30.0
_PATIENCE_S = 60.0
"""The longest pause before a retry that a server or a proxy can ask for with `Retry-After`."""
_SAFE = frozenset(("GET", "HEAD", "PUT", "DELETE"))


class WatchEvent(Struct, frozen=True):
    """One event of a watch over several topics, with the topic it belongs to."""

    topic: str
    item: Watched


class _ClientOperations(Operations):
    """What both clients share: everything except the methods that return handles.

    - `url` defaults to DRIFTQ_URL, else http://127.0.0.1:4000. `http+unix://%2Frun%2Fdriftq.sock` is a server on a Unix
      socket.
    - `api_key` defaults to DRIFTQ_API_KEY, if set.
    - `timeout` is the time for one call in seconds, `retries` the number of further tries after a failure.
    - `node` is the name of this client for queues and groups.
    - `ca_file` has the certificates that an https server is checked against, instead of those of the system; it
      defaults to DRIFTQ_CA_FILE.
    - `client_cert` is a PEM file with the certificate and the key of this client, or a pair of files; it defaults to
      DRIFTQ_CLIENT_CERT, one file.
    - `proxy` is the address of an HTTP proxy; it defaults to DRIFTQ_PROXY, and "" is none. The general proxy settings
      of the environment are ignored.

    Raise ValueError for an address or a key that cannot be used.
    """

    _make_driver: ClassVar[type[Any]]

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = _TIMEOUT_S,
        retries: int | Retries = 3,
        node: str | None = None,
        ca_file: str | None = None,
        client_cert: str | tuple[str, str] | None = None,
        proxy: str | None = None,
    ) -> None:
        entropy = SystemEntropy()
        given = url or os.environ.get("DRIFTQ_URL") or DEFAULT_URL
        key = api_key or os.environ.get("DRIFTQ_API_KEY")
        tls = Tls(
            ca_file or os.environ.get("DRIFTQ_CA_FILE") or None,
            client_cert or os.environ.get("DRIFTQ_CLIENT_CERT") or None,
        )
        via = os.environ.get("DRIFTQ_PROXY") if proxy is None else proxy
        self._address = ServerAddress(given, key, timeout, tls, via or None)
        self.url = self._address.url
        self.has_key = self._address.api_key is not None
        calls = Calls(
            Retries(count=retries) if isinstance(retries, int) else retries,
            entropy,
            min(timeout, _PATIENCE_S),
            NodeName(node or None, entropy),
        )
        super().__init__(calls, self._make_driver(self._address))

    @property
    def node(self) -> str:
        """Return the name of this client for queues and groups. Without `node`, a forked child has its own."""
        return self._node

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @operation
    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int | bool | None] | None = None,
        json: Any = None,
        content: bytes | Iterable[bytes] | AsyncIterable[bytes] | None = None,
        content_length: int | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool | None = None,
        wait_s: float = 0.0,
    ) -> Plan[Response]:
        """Make any call, for endpoints without a method here; return the successful answer as it came.

        - A call that fails is retried where that may help. `repeatable` states that a second execution does no harm; by
          default that is so for GET, HEAD, PUT and DELETE.
        - `content` can be an iterable of bytes. It is sent piece by piece, chunked or as `content_length` bytes. Only
          an AsyncClient accepts an asynchronous iterable.
        - An iterator, such as a generator, can be read only once, so the call is not retried after its first piece was
          read. A list, or an object with its own `__iter__`, is read from the beginning for each try.
        - With the header `expect: 100-continue`, the client sends the body when the server asks for it, or after 1 s.

        Raise ApiError or TransportError, and ValueError if the pieces do not have `content_length` bytes.
        """
        given = dict(headers or {})
        if json is not None:
            content, given = encode(json), {**JSON, **given}
        body = Body(content, content_length) if content is not None and not isinstance(content, bytes) else content
        request = Request(method, path, query_of(query or {}), given, body, wait_s)
        safe = method in _SAFE if repeatable is None else repeatable
        return self._calls.response(request, Repeat.SAME if safe else Repeat.AGAIN)

    @operation
    def health(self) -> Plan[Health]:
        """Return the health of the server process: it answers as long as it is alive."""
        return self._calls.json("GET", "/v0/health", Health)

    @operation
    def ready(self) -> Plan[Readiness]:
        """Return the readiness of the server. Raise UnavailableError while it does not accept requests."""
        return self._calls.json("GET", "/v0/ready", Readiness)

    @operation
    def metrics(self) -> Plan[dict[str, Any]]:
        """Return the metrics of the server as a dict."""
        request = Request("GET", "/v0/metrics", headers={"accept": "application/json"})
        return decoded((yield from self._calls.response(request, Repeat.SAME)), dict[str, Any])

    @flow
    def topics(self, *, prefix: str | None = None, v1: bool = True) -> Flow[TopicRow]:
        """Yield the topics, sorted by name; with `v1=False` without those of the broker."""
        query = {"prefix": prefix, "v1": v1}
        return self._calls.pages("/v0/topics", TopicList, lambda page: page.topics, query)

    @flow
    def watch(self, topics: Starts, *, node: Nodes | None = None) -> Flow[WatchEvent]:
        """Yield the events of several topics: records, tombstones, `CaughtUp` and `TopicGone`.

        `topics` maps names to a start, a seq or a `Start`; a list of names starts at the oldest retained records. If
        the connection breaks, the client reconnects and continues where it stopped. The watch ends when all topics are
        deleted.
        """
        return watched(self._calls, topics, WatchEvent, node=node)

    @operation
    def put_router(
        self,
        name: str,
        source: str,
        dest: str,
        *,
        filter: str | Filter | None = None,  # noqa: A002  # the contract's word
        preserve_node: bool = True,
        preserve_tag: bool = True,
        create_dest: bool = True,
        allow_cycle: bool = False,
        guarantee: Guarantee = Guarantee.AT_LEAST_ONCE,
    ) -> Plan[RouterPut]:
        """Create a router from `source` to `dest`, or replace the settings of an existing one."""
        body = {"source": source, "dest": dest, "filter": filter, "guarantee": guarantee, "allow_cycle": allow_cycle}
        body |= {"preserve_node": preserve_node, "preserve_tag": preserve_tag, "create_dest": create_dest}
        return self._calls.json("PUT", path_of("v0", "routers", name), RouterPut, body=body)

    @operation
    def router(self, name: str) -> Plan[RouterState]:
        """Return the settings and the progress of a router."""
        return self._calls.json("GET", path_of("v0", "routers", name), RouterState)

    @flow
    def routers(
        self, *, prefix: str | None = None, source: str | None = None, dest: str | None = None
    ) -> Flow[RouterRow]:
        """Yield the routers, sorted by name."""
        query = {"prefix": prefix, "source": source, "dest": dest}
        return self._calls.pages("/v0/routers", RouterList, lambda page: page.routers, query)

    @operation
    def delete_router(self, name: str) -> Plan[RouterDeleted]:
        """Delete a router; the records it has copied stay."""
        return self._calls.json("DELETE", path_of("v0", "routers", name), RouterDeleted)

    @operation
    def begin_backup(self, to: str | None = None) -> Plan[BackupState]:
        """Start a backup of all topics into a directory on the server; the default is its `--backup-dir`."""
        body = {} if to is None else {"to": to}
        return self._calls.json("POST", "/v0/backups", BackupState, body=body, repeat=Repeat.AGAIN)

    @operation
    def backup(self, backup_id: str) -> Plan[BackupState]:
        """Return the progress of a backup; its `state` becomes `done` or `failed` at the end."""
        return self._calls.json("GET", path_of("v0", "backups", backup_id), BackupState)

    @operation
    def backups(self) -> Plan[BackupList]:
        """Return the backups that were started since the server started, oldest first."""
        return self._calls.json("GET", "/v0/backups", BackupList)


class Client(_ClientOperations, Blocking, Closing):
    """A blocking client of one server. Several threads may share it. Use it with `with`, or call `close`."""

    _make_driver = Driver

    @property
    def broker(self) -> Broker:
        """Return a handle for the broker API of this server."""
        return Broker(self._calls, self._driver)

    def topic(self, name: str) -> Topic:
        """Return a handle for a topic; this makes no request."""
        return Topic(name, self._calls, self._driver)

    def asynchronous(self) -> "AsyncClient":
        """Return an AsyncClient of the same server, with the same settings and name."""
        address, retries = self._address, self._calls.retries
        ca_file, client_cert = address.tls or Tls()
        return AsyncClient(
            self.url,
            address.api_key,
            timeout=address.timeout_s,
            retries=retries,
            node=self.node,
            ca_file=ca_file,
            client_cert=client_cert,
            proxy=address.proxy,
        )

    def close(self) -> None:
        """Close all connections; calls that wait in other threads raise ClosedError."""
        self._driver.close()


class AsyncClient(_ClientOperations, Async, AsyncClosing):
    """An asyncio client of one server, for one event loop. Use it with `async with`, or await `close`."""

    _make_driver = AsyncDriver

    @property
    def broker(self) -> AsyncBroker:
        """Return a handle for the broker API of this server."""
        return AsyncBroker(self._calls, self._driver)

    def topic(self, name: str) -> AsyncTopic:
        """Return a handle for a topic; this makes no request."""
        return AsyncTopic(name, self._calls, self._driver)

    async def close(self) -> None:
        """Close all connections; calls that wait in other tasks raise ClosedError."""
        await self._driver.close()
