"""The commit point of records: the one way from frames to visible records, for writes, copies and publications.

    sent, with its seqs → commit point → shown → `done`
                        └─ its write fails, or the shard stops: the seqs are given back → `done` with the error

| commit point | the records are shown when                                                                        |
|--------------|---------------------------------------------------------------------------------------------------|
| QUEUED       | their frames are passed to the log writer; at once, if they have no frames                        |
| WRITTEN      | their frames are in the file                                                                      |
| SYNCED       | their frames, and all frames of the shard before them, are on stable storage                      |

Records of a topic are shown in the order of their seqs, after every change of the topic that was sent before. If such a
change is still to be written, records that would be shown when QUEUED are shown when WRITTEN.

`must_sync` decides about SYNCED: always in class `fsync`; in class `disk` if a crash could otherwise give a seq that a
reader has seen to another record.
"""

from collections.abc import Callable
from enum import Enum, auto
from functools import partial

from msgspec import Struct

from driftq.engine.state.topic import Topic
from driftq.engine.write.change_log import ChangeLog
from driftq.engine.write.lost_writes import Losses
from driftq.engine.write.seq_reservations import Reservations
from driftq.errors import DriftQError, TopicNotFoundError
from driftq.model.topic_config import Durability
from driftq.storage.wal.group_commit import Submission


class ShownWhen(Enum):
    """The commit points of records, from early to late."""

    QUEUED = auto()
    WRITTEN = auto()
    SYNCED = auto()


# Looking up an enum member costs as much as a function call.
QUEUED, WRITTEN, SYNCED = ShownWhen
_DISK, _FSYNC = Durability.DISK, Durability.FSYNC


class SentRecords(Struct, eq=False):
    """Records that are sent together. The subclasses are what a writer, a copier and a publisher do with theirs.

    One object with methods costs less than functions that are made for each write.
    """

    topic: Topic
    first: int
    last: int

    def show(self) -> None:
        """Add the records to the topic."""
        raise NotImplementedError

    def done(self, submission: Submission | None, error: DriftQError | None) -> None:
        """Take the result, after the records are shown or have failed; without a submission if they had no frames."""
        raise NotImplementedError

    def lost(self) -> None:
        """Act on a failed write of records that are shown already."""


class CommitPoint:
    """Sends records to the log, and shows them when their commit point is reached."""

    def __init__(self, change_log: ChangeLog) -> None:
        self._change_log = change_log
        self.losses = Losses()
        self.reservations = Reservations(change_log)

    def must_sync(
        self, topic: Topic, first: int, last: int, unsafe: Callable[[Topic], bool], *, reserve: bool = True
    ) -> bool:
        """Whether a reader may see records with these seqs only when they are on stable storage.

        `unsafe`: whether a crash may give a seq of the topic to another record although it is reserved. With `reserve`,
        more `disk` seqs are reserved if it is time. That logs a frame: call it before other frames get their numbers.
        """
        durability = topic.durability
        if durability is not _DISK:
            return durability is _FSYNC
        unreserved = self.reservations.must_wait(topic, first, last) if reserve else last > topic.reserved
        return unreserved or unsafe(topic)

    def send(
        self, sent: SentRecords, frames: list[bytes], when: ShownWhen, late: tuple[int, int] | None = None
    ) -> None:
        """Send the frames of records, and show the records at their commit point; `late` as in `Submission`."""
        topic = sent.topic
        flight = topic.in_flight
        flight.next_seq = sent.last + 1
        ahead = flight.waiting - flight.handing if frames else flight.waiting
        if when is not QUEUED or ahead:
            flight.waiting += 1
            self._change_log.submit(topic, frames, sync=when is SYNCED, done=partial(self._waited, sent))
        elif frames:
            flight.waiting += 1
            flight.handing += 1
            handed, done = partial(self._handed, sent), partial(self._written, sent)
            self._change_log.submit(topic, frames, sync=False, done=done, prompt=False, handed=handed, late=late)
        else:
            self._show(sent, None)

    def _handed(self, sent: SentRecords, submission: Submission, error: DriftQError | None) -> None:
        """Show records whose frames have been passed to the log writer, without waiting until they are written."""
        flight = sent.topic.in_flight
        flight.handing -= 1
        flight.waiting -= 1
        flight.acked_since_reserve += 0 if error else sent.last - sent.first + 1
        self._reached(sent, submission, error)

    def _written(self, sent: SentRecords, _: Submission, error: DriftQError | None) -> None:
        """Note the result of writing records that are shown already."""
        if error is not None:
            self.losses.note(sent.topic, sent.first, sent.last)
            sent.lost()

    def _waited(self, sent: SentRecords, submission: Submission, error: DriftQError | None) -> None:
        """Show records that had to wait until they were written, or for earlier ones."""
        topic = sent.topic
        topic.in_flight.waiting -= 1
        ordered = topic.gone or topic.head + 1 == sent.first
        assert error is not None or ordered, "commits of one topic come in the order of their seqs"
        self._reached(sent, submission, error)

    def _reached(self, sent: SentRecords, submission: Submission, error: DriftQError | None) -> None:
        if error is None:
            self._show(sent, submission)
        else:
            self._change_log.give_back(sent.topic)
            sent.done(submission, error)

    def _show(self, sent: SentRecords, submission: Submission | None) -> None:
        """Show committed records, or give their seqs back."""
        topic = sent.topic
        error: DriftQError | None = None
        if topic.gone:
            error = TopicNotFoundError(topic.name)
        else:
            try:
                sent.show()
            except OSError as unreadable:
                error = self._change_log.stopped_by(topic, unreadable)
        if error is not None:
            self._change_log.give_back(topic)
        sent.done(submission, error)
