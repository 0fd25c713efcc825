"""When records are shown: at their commit point, in the order of their seqs, or not at all."""

import pytest

from driftq.codec.write_body import make_rows
from driftq.engine.write.commit_point import QUEUED, SYNCED, WRITTEN, SentRecords, ShownWhen
from driftq.engine.write.state_changes import apply_append
from driftq.errors import DriftQError
from driftq.model.topic_config import Durability
from driftq.storage.blocks.block import encode_block
from driftq.storage.blocks.rows import Rows
from driftq.storage.wal.group_commit import Submission
from driftq.system.disk import Site
from driftq.testing import EngineRig, FaultyDisk


class _Sender:
    """A `disk` topic, and records that are sent to it one by one."""

    def __init__(self, rig: EngineRig) -> None:
        rig.put("t", Durability.DISK)
        self.rig = rig
        self.topic = rig.topic("t")
        self.done: list[tuple[Submission | None, DriftQError | None]] = []
        self.lost: list[int] = []

    def send(self, when: ShownWhen, *, logged: bool = True) -> None:
        """Send one record, and run the turn."""
        topic, rows, ts = self.topic, make_rows([b"1"]), self.rig.engine.time.stamp()
        seq = topic.in_flight.next_seq
        frames = [encode_block(rows, topic_id=topic.id, first_seq=seq, ts=ts)] if logged else []
        self.rig.engine._commit_point.send(_Sent(topic, seq, seq, self, rows, ts), frames, when)
        self.rig.runtime.run_until_idle()


class _Sent(SentRecords, eq=False):
    sender: _Sender
    rows: Rows
    ts: int

    def show(self) -> None:
        apply_append(self.topic, self.rows, self.ts)

    def done(self, submission: Submission | None, error: DriftQError | None) -> None:
        self.sender.done.append((submission, error))

    def lost(self) -> None:
        self.sender.lost.append(self.first)


@pytest.mark.parametrize(("when", "heads"), [(QUEUED, [1, 1]), (WRITTEN, [0, 1]), (SYNCED, [0, 1])])
def test_records_are_shown_at_their_commit_point(when: ShownWhen, heads: list[int]) -> None:
    sender = _Sender(EngineRig())
    sender.rig.hold_wal()
    sender.send(when)
    held = sender.topic.head
    syncs = sender.rig.disk.synced[Site.WAL_COMMIT]
    sender.rig.release_wal()
    assert [held, sender.topic.head] == heads
    assert [error for _, error in sender.done] == [None]
    assert (sender.rig.disk.synced[Site.WAL_COMMIT] > syncs) is (when is SYNCED)


def test_records_without_frames_are_shown_at_once() -> None:
    sender = _Sender(EngineRig())
    sender.rig.hold_wal()
    sender.send(QUEUED, logged=False)
    assert (sender.topic.head, sender.done) == (1, [(None, None)])


@pytest.mark.parametrize("logged", [True, False])
def test_records_wait_for_those_that_were_sent_before(*, logged: bool) -> None:
    sender = _Sender(EngineRig())
    sender.rig.hold_wal()
    sender.send(WRITTEN)
    sender.send(QUEUED, logged=logged)
    assert (sender.topic.head, sender.topic.in_flight.waiting) == (0, 2)
    sender.rig.release_wal()
    assert (sender.topic.head, sender.topic.in_flight.waiting, len(sender.done)) == (2, 0, 2)


@pytest.mark.parametrize(("when", "head"), [(QUEUED, 1), (WRITTEN, 0), (SYNCED, 0)])
def test_a_failed_write_gives_seqs_back_or_is_a_loss_if_the_records_were_shown(when: ShownWhen, head: int) -> None:
    """proves: G-IO-11"""
    failing: list[bool] = []
    rig = EngineRig(
        wrap=lambda disk: FaultyDisk(
            disk,
            forever=True,
            when=lambda operation, path: bool(failing) and operation == "pwritev" and "/wal/" in path,
        )
    )
    sender = _Sender(rig)
    failing.append(True)
    sender.send(when)
    flight = sender.topic.in_flight
    assert (sender.topic.head, flight.next_seq, flight.waiting, flight.handing) == (head, head + 1, 0, 0)
    assert [error is None for _, error in sender.done] == [when is QUEUED]
    assert (flight.lost_from, sender.lost) == ((1, [1]) if when is QUEUED else (None, []))
