"""Dead letters of the broker (http-v1 §10, §22). The server moves them, and only the server knows which are moved.

A moved letter stays in its topic, marked as retired. The server's audit topic lists most moves, in bulk. It may have
lost its oldest notes, so the server is asked about the remaining letters.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import json

from driftq.model.names import broker_name, broker_topic
from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs.redrive.dead_letter_table import DeadLetterRow, age_s, groups, read
from driftq.pipeline.jobs.topic_selection import exists
from driftq.pipeline.runs.job import JobRun

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_BROKER_DLQ = broker_topic("dlq.")
_AUDIT = broker_topic("audit.redrive")
_REDRIVE = "/v1/dlq/redrive"
_OFFSETS = 10_000
_POLL_S = 0.2


class BrokerMover:
    """The `dead_letter_table.Mover` of a dead-letter topic of the broker."""

    def __init__(self, run: JobRun, topic: str, rate: float | None) -> None:
        if not topic.startswith(_BROKER_DLQ):
            raise PipelineError(f"{topic!r} is not a dead-letter topic of the broker, {_BROKER_DLQ}NAME")
        self._run = run
        self._topic = topic
        self._origin = broker_name(topic).removeprefix("dlq.")
        self._rate = rate

    def letters(self) -> "DataFrame":
        """Return the letters that the audit topic does not list as moved."""
        from pyspark.sql import functions as f

        def text(path: str) -> "Column":
            return f.get_json_object("data", f"$.envelope.{path}")

        rows = read(self._run, self._topic).select(
            f.col("topic").alias("dlq"),
            "seq",
            "ts",
            age_s().alias("age_s"),
            text("dlq.original_topic").alias("origin"),
            (text("dlq.original_offset").cast("long") + 1).alias("origin_seq"),
            text("dlq.attempts").cast("long").alias("deliveries"),
            text("dlq.last_error").alias("reason"),
            text("tenant_id").alias("tenant"),
            text("run_id").alias("run_id"),
            text("dlq.group").alias("failed_group"),
            "tag",
            "data",
        )
        return rows.join(self._moved(), "seq", "left_anti") if exists(self._run.client, _AUDIT) else rows

    def _moved(self) -> "DataFrame":
        """Return the seqs of moved letters. The server writes a note after the letter's copy is stored."""
        from pyspark.sql import functions as f

        notes = read(self._run, _AUDIT).select(f.get_json_object("data", "$.value").alias("note"))
        notes = notes.where(f.get_json_object("note", "$.dlq_topic") == broker_name(self._topic))
        return notes.select((f.get_json_object("note", "$.dlq_offset").cast("long") + 1).alias("seq"))

    def waiting(self, letters: Sequence[DeadLetterRow]) -> list[DeadLetterRow]:
        """Return the letters that the server would move."""
        return [letter for group in groups(letters, _OFFSETS) for letter in self._waiting(group)]

    def _waiting(self, letters: Sequence[DeadLetterRow]) -> Sequence[DeadLetterRow]:
        """Return the letters that the server would move.

        The server returns only their number, so the letters are halved until it is all of them or none.
        """
        count = self._ask(letters, dry_run=True)["matched"] if letters else 0
        if count in (0, len(letters)):
            return letters if count else ()
        half = len(letters) // 2
        return [*self._waiting(letters[:half]), *self._waiting(letters[half:])]

    def finish(self) -> int:
        """Return 0: no move is ever half done, because a letter that was not moved is still there."""
        return 0

    def move(self, letters: Sequence[DeadLetterRow]) -> Iterator[tuple[int, int]]:
        """Let the server move letters. Yields how many were moved and how many were not."""
        for group in groups(letters, _OFFSETS):
            if self._run.stopping():
                return
            asked = self._ask(group, **({} if self._rate is None else {"rate_per_s": self._rate}))
            if asked["matched"] < len(group):
                yield 0, len(group) - asked["matched"]  # another redrive has moved them since
            yield from self._watched(f"{_REDRIVE}/{asked['job_id']}")

    def _ask(self, letters: Sequence[DeadLetterRow], **more: object) -> dict[str, Any]:
        body = {"topic": self._origin, "offsets": [letter.seq - 1 for letter in letters], **more}
        return json.decode(self._run.client.request("POST", _REDRIVE, json=body).content, type=dict[str, Any])

    def _watched(self, path: str) -> Iterator[tuple[int, int]]:
        moved = failed = 0
        state = "running"
        while state == "running":
            if self._run.pause(_POLL_S):
                self._run.client.request("DELETE", path)
            found = json.decode(self._run.client.request("GET", path).content)
            state = found["state"]
            yield found["moved"] - moved, found["failed"] - failed
            moved, failed = found["moved"], found["failed"]
