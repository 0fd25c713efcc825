"""Staged writes as calls of the server. Each may be repeated: staging replaces, and a commit that was made is answered
as made. So the wire asks again while the server is away.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

from driftq.pipeline.errors import AbsentError, PipelineError
from driftq.pipeline.server_connection import AnswerError, Wire
from driftq.pipeline.sink.staged_batch import PartName, TaskAddress

_SYNC_MS = 30_000
_ROUNDS = 10


class ServerStage:
    """A server to write to. Use it as a context."""

    def __init__(self, wire: Wire, *, create: bool) -> None:
        self._wire = wire
        self._create = create

    def __enter__(self) -> "ServerStage":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._wire.close()

    def stage(self, topic: str, address: TaskAddress, chunk: int, body: bytes) -> None:
        """Keep a chunk; the topic is made where it is not there and may be."""
        query = urlencode({**address._asdict(), "chunk": chunk})
        path = f"{self._wire.topic_path(topic, 'stage')}?{query}"
        try:
            self._wire.send(path, body)
        except AnswerError as absent:
            if absent.said != "topic_not_found":
                raise
            if not self._create:
                raise AbsentError(f"there is no topic {topic!r}: create it, or leave createTopic on") from absent
            self._wire.put(self._wire.topic_path(topic), {})
            self._wire.send(path, body)

    def commit(self, topic: str, writer: str, batch: int, parts: Sequence[PartName]) -> None:
        """Publish the parts of a batch, unless it has been, and return when that is on stable storage.

        Only then may Spark note the batch as done: a `disk` topic may lose what it said yes to a moment before a
        power failure, and with it the memory of the batch. Whoever comes back then finds the parts still there.
        """
        path = self._wire.topic_path(topic, "commit") + "?return_seqs=false"
        asked = {"writer": writer, "batch": batch, "parts": [part._asdict() for part in parts]}
        for _ in range(_ROUNDS):
            last = self._wire.post(path, asked)["last_seq"]
            if last is None or self._is_synced(topic, last):
                return
        raise PipelineError(f"batch {batch} is in topic {topic!r} and does not come to rest; see the server's log")

    def drop(self, topic: str, writer: str) -> None:
        """Let a writer's parts go."""
        self._wire.delete(self._wire.topic_path(topic, "stage", writer))

    def _is_synced(self, topic: str, seq: int) -> bool:
        """Has it come to rest? No means that it takes long, or that a restart has lost it."""
        query = f"touch=false&wait_synced={seq}&wait_ms={_SYNC_MS}"
        found: dict[str, Any] = self._wire.get(f"{self._wire.topic_path(topic)}?{query}")
        synced = found.get("synced_seq")
        return synced is None or synced >= seq
