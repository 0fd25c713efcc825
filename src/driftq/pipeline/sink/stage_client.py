"""Staged writes as HTTP calls to the server.

Each call may be repeated: staging a chunk again replaces it, and repeating a commit returns the result of the first
one. So the connection retries while the server is down.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

from driftq.pipeline.errors import AbsentError, PipelineError
from driftq.pipeline.server_connection import AnswerError, Wire
from driftq.pipeline.sink.staged_batch import CommitAnswer, PartName, PublishedBatch, TaskAddress

_SYNC_MS = 30_000
_ROUNDS = 10


class ServerStage:
    """The stage of a server, for one write. Use it as a context manager."""

    def __init__(self, wire: Wire, *, create: bool) -> None:
        self._wire = wire
        self._create = create

    def __enter__(self) -> "ServerStage":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._wire.close()

    def last_batch(self, topic: str, writer: str) -> PublishedBatch | None:
        """Return the last batch of a writer, or None if it has none in this topic."""
        try:
            found = self._wire.get(self._wire.topic_path(topic, "writers", writer))
        except AnswerError as absent:
            if absent.said not in ("not_found", "topic_not_found"):
                raise
            return None
        return PublishedBatch(found["last_batch"], found["first_seq"], found["last_seq"])

    def stage(self, topic: str, address: TaskAddress, chunk: int, body: bytes) -> None:
        """Store a chunk. Creates the topic if it does not exist and option `createTopic` allows it."""
        query = urlencode({**address._asdict(), "chunk": chunk, **({"create": "true"} if self._create else {})})
        try:
            self._wire.send(f"{self._wire.topic_path(topic, 'stage')}?{query}", body)
        except AnswerError as absent:
            if absent.said != "topic_not_found":
                raise
            if not self._create:
                raise AbsentError(
                    f"there is no topic {topic!r}: create it, or set option createTopic to true"
                ) from absent
            # A server of version 0.1.0 does not know `create`.
            self._wire.put(self._wire.topic_path(topic), {})
            self._wire.send(f"{self._wire.topic_path(topic, 'stage')}?{query}", body)

    def commit(self, topic: str, writer: str, batch: int, parts: Sequence[PartName]) -> CommitAnswer:
        """Publish the parts of a batch, unless it is published already, and return when it is on stable storage.

        Spark may record the batch as done only then. A power failure may remove the last acknowledged writes of a
        `disk` topic, and with them the server's memory of the batch. When the batch is repeated, its staged parts are
        still there.
        """
        path = self._wire.topic_path(topic, "commit") + "?return_seqs=false"
        asked = {"writer": writer, "batch": batch, "parts": [part._asdict() for part in parts]}
        for _ in range(_ROUNDS):
            done = self._wire.post(path, asked)
            last = done["last_seq"]
            if last is None or self._is_synced(topic, last):
                return CommitAnswer(done["first_seq"], last, done["deduped"])
        raise PipelineError(
            f"batch {batch} was published to topic {topic!r} but is not durable after {_ROUNDS} attempts; "
            "see the server's log"
        )

    def drop(self, topic: str, writer: str) -> None:
        """Delete the staged parts of a writer."""
        self._wire.delete(self._wire.topic_path(topic, "stage", writer))

    def _is_synced(self, topic: str, seq: int) -> bool:
        """Whether the topic is synced up to `seq`. False if that takes more than 30 s or a restart lost records."""
        query = f"touch=false&wait_synced={seq}&wait_ms={_SYNC_MS}"
        found: dict[str, Any] = self._wire.get(f"{self._wire.topic_path(topic)}?{query}")
        synced = found.get("synced_seq")
        return synced is None or synced >= seq
