"""The bodies of watches and WebSocket subscriptions (http-v0 §12.1, §13, §22.3)."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.json import Decoder

from driftq.errors import InvalidRequestError
from driftq.features.watch.position import Options, ReadStart
from driftq.http.v0.bodies import U32, U64, check_u64
from driftq.model.limits import MIB, PAGE_BYTES, PAGE_BYTES_MAX, PAGE_RECORDS, Limits

WATCH_BYTES = 256 << 10
SOCKET_RECORDS = 1000
SOCKET_BYTES = MIB
HEARTBEAT_MS = 15_000


class StartBody(Struct):
    """Where the reading of one topic starts."""

    from_seq: U64 | UnsetType = UNSET
    tail: bool | UnsetType = UNSET
    from_ts: U64 | UnsetType = UNSET
    epoch: U64 | None = None

    def start(self) -> ReadStart:
        """Return the checked start. Raise InvalidRequestError if the fields contradict each other or are too large."""
        if self.from_ts is not UNSET:
            if self.from_seq is not UNSET or self.tail is not UNSET:
                raise InvalidRequestError("from_ts cannot be combined with from_seq or tail")
            check_u64(self.from_ts, "from_ts")
            return ReadStart(from_ts=self.from_ts)
        from_seq = 0 if self.from_seq is UNSET else self.from_seq
        check_u64(from_seq, "from_seq")
        check_u64(self.epoch, "epoch")
        tail = self.tail is True
        return ReadStart(from_seq, tail, epoch=None if tail else self.epoch)


class WatchBody(Struct):
    """The body of `POST /v0/watch`."""

    topics: dict[str, StartBody]
    node: str | list[str] | None = None
    limit: U32 = PAGE_RECORDS
    max_batch_bytes: U64 = WATCH_BYTES
    heartbeat_ms: U64 = HEARTBEAT_MS
    include_meta: bool = True
    include_tags: bool = False
    include_data: bool = True
    include_epoch: bool = False
    consistency: Literal["eventual", "strong"] = "eventual"


class SubscribeBody(StartBody):
    """The body of a WebSocket's `subscribe` command."""

    topic: str | UnsetType = UNSET
    topics: dict[str, StartBody] | UnsetType = UNSET
    node: str | list[str] | None = None
    limit: U32 = SOCKET_RECORDS
    max_batch_bytes: U64 = SOCKET_BYTES
    include_meta: bool = True
    include_tags: bool = False
    include_data: bool = True
    include_epoch: bool = False
    lenient: bool = False

    def entries(self) -> dict[str, StartBody]:
        """Return all named topics with their starts; an entry of `topics` wins over `topic`."""
        named = {} if self.topics is UNSET else self.topics
        return named if self.topic is UNSET or self.topic in named else {self.topic: self} | named


WATCH_BODY = Decoder(WatchBody)
SUBSCRIBE_BODY = Decoder(SubscribeBody)


def starts_of(entries: dict[str, StartBody], limits: Limits) -> dict[str, ReadStart]:
    """Return the start of every topic. Raise InvalidRequestError if one is invalid, or for none or too many."""
    if not 1 <= len(entries) <= limits.watch_topics_max:
        raise InvalidRequestError(
            f"the request names {len(entries)} topics; it must name 1 to {limits.watch_topics_max}"
        )
    return {name: entry.start() for name, entry in entries.items()}


def options_of(body: WatchBody | SubscribeBody, limits: Limits) -> Options:
    """Return the options of the subscription, with limits applied."""
    check_u64(body.max_batch_bytes, "max_batch_bytes")
    nodes = [body.node] if isinstance(body.node, str) else body.node or ()
    watch = body if isinstance(body, WatchBody) else None
    return Options(
        limit=min(body.limit or PAGE_RECORDS, limits.page_records_max),
        max_batch_bytes=min(body.max_batch_bytes or PAGE_BYTES, PAGE_BYTES_MAX),
        nodes=frozenset(map(str.encode, nodes)),
        tags=body.include_tags,
        meta=body.include_meta,
        data=body.include_data,
        strong=watch is not None and watch.consistency == "strong",
        hides_loss=watch is not None,
    )
