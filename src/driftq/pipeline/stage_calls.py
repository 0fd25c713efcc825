"""Staged writes as calls of the client, with the patience that makes them survive a restart of the server.

Every call here may be repeated: staging replaces, and a commit that was made is answered as made. So the client asks
again until the time is over.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from driftq.client import Client, NotFoundError, Part, Retries, Topic
from driftq.pipeline.errors import PipelineError
from driftq.pipeline.staged import Address, PartName

_PAUSE_S = 0.75
"""What a retry waits on average, once it waits the longest."""
_TIMEOUT_S = 120.0
"""A commit of a gigabyte takes its time."""
_SYNC_MS = 30_000
_ROUNDS = 10


class ServerStage:
    """A server to write to. Use it as a context."""

    def __init__(self, url: str, api_key: str | None, *, create: bool, patience_ms: int) -> None:
        retries = Retries(count=1 + int(patience_ms / 1000 / _PAUSE_S), backoff_max_s=1.0)
        self._client = Client(url, api_key, timeout=_TIMEOUT_S, retries=retries)
        self._create = create

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    def stage(self, topic: str, address: Address, chunk: int, body: bytes) -> None:
        """Keep a chunk; the topic is made where it is not there and may be."""
        handle = self._client.topic(topic)
        try:
            handle.stage(body, chunk=chunk, **address._asdict())
        except NotFoundError as absent:
            if not self._create:
                raise PipelineError(f"there is no topic {topic!r}: create it, or leave createTopic on") from absent
            handle.create()
            handle.stage(body, chunk=chunk, **address._asdict())

    def commit(self, topic: str, writer: str, batch: int, parts: Sequence[PartName]) -> None:
        """Publish the parts of a batch, unless it has been, and return when that is on stable storage.

        Only then may Spark note the batch as done: a `disk` topic may lose what it said yes to a moment before a
        power failure, and with it the memory of the batch. Whoever comes back then finds the parts still there.
        """
        handle = self._client.topic(topic)
        named = [Part(*part) for part in parts]
        for _ in range(_ROUNDS):
            done = handle.commit(writer=writer, batch=batch, parts=named)
            if done.last_seq is None or _is_synced(handle, done.last_seq):
                return
        raise PipelineError(
            f"batch {batch} is in topic {topic!r} and does not come to rest there; see the server's log"
        )

    def drop(self, topic: str, writer: str) -> None:
        """Let a writer's parts go."""
        self._client.topic(topic).drop_staged(writer)


def _is_synced(topic: Topic, seq: int) -> bool:
    """Has it come to rest? No means that it takes long, or that a restart has lost it."""
    found = topic.info(touch=False, wait_synced=seq, wait_ms=_SYNC_MS)
    return found.synced_seq is None or found.synced_seq >= seq
