"""`Client` and `AsyncClient`: what can be asked of a server as a whole (http-v0 §6.3, §11, §12, §17), and the way to
its topics and its broker.
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
from driftq.client.transport.drivers import AsyncClosing, AsyncDriver, Closing, Driver
from driftq.client.transport.operations import Async, Blocking, Operations, flow, operation
from driftq.client.transport.plan import Flow, Plan, Request, Response
from driftq.client.transport.retry import Repeat, Retries
from driftq.client.transport.server_address import ServerAddress, Tls
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

DEFAULT_URL = "http://127.0.0.1:4000"
_TIMEOUT_S = 30.0
_PATIENCE_S = 60.0
"""Nobody who has made a call waits longer than this for the next try, whatever a server or a proxy asks for."""
_SAFE = frozenset(("GET", "HEAD", "PUT", "DELETE"))


class WatchEvent(Struct, frozen=True):
    """What happened, and in which topic."""

    topic: str
    item: Watched


class _ClientOperations(Operations):
    """All but what makes handles.

    Without `url` it is that in DRIFTQ_URL, else http://127.0.0.1:4000; without `api_key` that in DRIFTQ_API_KEY, if
    any. `timeout` is in seconds, for a call; `retries` how often one is made again; `node` names this client to queues
    and groups. An https server is checked against the certificates in `ca_file`, else the system's; `client_cert` is a
    PEM file with this client's certificate and key, or a pair of files; `proxy` is the address of an HTTP proxy (the
    environment's is not used). `http+unix://%2Frun%2Fdriftq.sock` is a server on a Unix socket. Raises ValueError for
    an address or a key that cannot be used.
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
        self._address = ServerAddress(given, key, timeout, Tls(ca_file, client_cert), proxy)
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
        """Return the name of this client for queues and groups. A forked child has another than its parent."""
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
        """Any call, for what has no method here: a success as it came. Raises ApiError or TransportError.

        It is made again where that may help; whether it may take effect twice is `repeatable`, by default what its
        method says. `content` that is an iterable of bytes is sent piece by piece, in chunks or as `content_length`
        bytes; only an AsyncClient takes an asynchronous one. An iterator, such as a generator, can be read once: such a
        call is not made again after the first piece was taken. A list, or an object with an `__iter__` of its own, is
        read from the beginning for another try. With the header `expect: 100-continue` the body waits until the server
        asks for it, for a second at most. Raises ValueError if the pieces are not `content_length` bytes.
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
        """Is the process alive?"""
        return self._calls.json("GET", "/v0/health", Health)

    @operation
    def ready(self) -> Plan[Readiness]:
        """Does the server take requests? Raises UnavailableError while it does not."""
        return self._calls.json("GET", "/v0/ready", Readiness)

    @operation
    def metrics(self) -> Plan[dict[str, Any]]:
        """What the server counts."""
        request = Request("GET", "/v0/metrics", headers={"accept": "application/json"})
        return decoded((yield from self._calls.response(request, Repeat.SAME)), dict[str, Any])

    @flow
    def topics(self, *, prefix: str | None = None, v1: bool = True) -> Flow[TopicRow]:
        """The topics, by name; `v1` says whether those of the broker are among them."""
        query = {"prefix": prefix, "v1": v1}
        return self._calls.pages("/v0/topics", TopicList, lambda page: page.topics, query)

    @flow
    def watch(self, topics: Starts, *, node: Nodes | None = None) -> Flow[WatchEvent]:
        """What happens in many topics: records, tombstones, and when a topic is caught up with or gone.

        `topics` maps names to where to begin, a seq or a `Start`; names alone begin at what is retained. A connection
        that breaks is made again, and goes on where it stopped. Ends when no topic is left.
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
        """Create a router from `source` to `dest`, or change what it does."""
        body = {"source": source, "dest": dest, "filter": filter, "guarantee": guarantee, "allow_cycle": allow_cycle}
        body |= {"preserve_node": preserve_node, "preserve_tag": preserve_tag, "create_dest": create_dest}
        return self._calls.json("PUT", path_of("v0", "routers", name), RouterPut, body=body)

    @operation
    def router(self, name: str) -> Plan[RouterState]:
        """How a router stands."""
        return self._calls.json("GET", path_of("v0", "routers", name), RouterState)

    @flow
    def routers(
        self, *, prefix: str | None = None, source: str | None = None, dest: str | None = None
    ) -> Flow[RouterRow]:
        """The routers, by name."""
        query = {"prefix": prefix, "source": source, "dest": dest}
        return self._calls.pages("/v0/routers", RouterList, lambda page: page.routers, query)

    @operation
    def delete_router(self, name: str) -> Plan[RouterDeleted]:
        """Delete a router; its copies stay."""
        return self._calls.json("DELETE", path_of("v0", "routers", name), RouterDeleted)

    @operation
    def begin_backup(self, to: str | None = None) -> Plan[BackupState]:
        """Begin a backup of every topic into a directory of the server's machine; without one into its --backup-dir."""
        body = {} if to is None else {"to": to}
        return self._calls.json("POST", "/v0/backups", BackupState, body=body, repeat=Repeat.AGAIN)

    @operation
    def backup(self, backup_id: str) -> Plan[BackupState]:
        """How far a backup is; `state` ends as `done` or `failed`."""
        return self._calls.json("GET", path_of("v0", "backups", backup_id), BackupState)

    @operation
    def backups(self) -> Plan[BackupList]:
        """The backups of this run of the server, oldest first."""
        return self._calls.json("GET", "/v0/backups", BackupList)


class Client(_ClientOperations, Blocking, Closing):
    """A server, for callers that block; many threads may use one client. Use it as a context, or close it."""

    _make_driver = Driver

    @property
    def broker(self) -> Broker:
        """The broker API of the same server."""
        return Broker(self._calls, self._driver)

    def topic(self, name: str) -> Topic:
        """A handle; nothing is asked yet."""
        return Topic(name, self._calls, self._driver)

    def asynchronous(self) -> "AsyncClient":
        """A client of the same server, with the same key and name, for an event loop."""
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
        """Let go of all connections."""
        self._driver.close()


class AsyncClient(_ClientOperations, Async, AsyncClosing):
    """The same for callers that await, within one event loop."""

    _make_driver = AsyncDriver

    @property
    def broker(self) -> AsyncBroker:
        """The broker API of the same server."""
        return AsyncBroker(self._calls, self._driver)

    def topic(self, name: str) -> AsyncTopic:
        """A handle; nothing is asked yet."""
        return AsyncTopic(name, self._calls, self._driver)

    async def close(self) -> None:
        """Let go of all connections."""
        await self._driver.close()
