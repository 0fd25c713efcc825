"""Marks whose write fails: they are logged before any later frame and before any later copy is shown."""

import errno
from itertools import pairwise

import pytest

from driftq.engine.state.topic import Topic
from driftq.testing import CrashMode, FaultyDisk, ServerRig
from tests.crash.routed import live
from tests.unit.features.router.routed_rig import put_router, put_topic


class _Lossy:
    """A server with a router from `a` to `b`, whose log can be made to fail."""

    def __init__(self, error: int, *names: str, shards: int = 1) -> None:
        self.fails = False
        self.error = error
        self.failed = 0
        self.spared = 0
        """So many writes still work."""
        self.no_checkpoint = False
        self.log = "/wal/"
        self.rig = ServerRig(
            seed=1,
            wal_shards=shards,
            checkpoint_interval_ms=10**9,
            wrap=lambda disk: FaultyDisk(disk, error=error, forever=True, when=self._strikes),
        )
        put_topic(self.rig, *names, durability="disk")
        for source, dest in pairwise(names):
            put_router(self.rig, source + dest, source, dest)
        self.rig.write("a", "first")
        self.rig.diff(names[-1])
        self.rig.advance(100)

    def _strikes(self, operation: str, path: str) -> bool:
        if operation != "pwritev" or not (self.log in path or "/meta/" in path):
            return False
        if self.spared and self.fails:
            self.spared -= 1
            return False
        self.failed += self.fails
        return self.fails or (self.no_checkpoint and "/meta/" in path)

    def topic(self, name: str) -> Topic:
        """Return a topic of the running server."""
        return self.rig.server.engine.topic(name)

    def crash_with_a_lost_copy(self, spared: int) -> None:
        """Show a copy, lose its record with the power, and start with a log that cannot be written."""
        for shard in range(self.rig.settings.wal_shards):
            self.rig.runtime.hold(f"driftq-wal-{shard}")
        self.rig.write("a", "lost")
        assert shown(self.rig, "b") == {1: "first", 2: "lost"}
        self.rig.crash(CrashMode.DROP)
        self.spared, self.fails = spared, True
        self.no_checkpoint = self.error == errno.EIO  # without space for one, no write would be taken
        self.rig.run()
        assert self.failed, "the start has tried to log its marks"
        assert self.topic("b").head == self.topic("b").reserved > 2

    def recover(self) -> None:
        """Let the log be written again, and wait until it is."""
        self.fails = False
        self.rig.advance(6000)


def shown(rig: ServerRig, topic: str) -> dict[int, str]:
    """Return the records of a topic by seq."""
    return {seq: record["data"] for seq, record in live(rig, topic).items()}


@pytest.mark.parametrize("direct", ["", "before the copy", "after the copy"])
@pytest.mark.parametrize(
    ("error", "spared"),
    [(errno.ENOSPC, 1), (errno.EIO, 1), (errno.EIO, 0)],
    ids=["no space: a checkpoint comes first", "the mark fails", "the file of the mark fails"],
)
def test_a_mark_of_a_start_that_cannot_be_written_is_logged_later(error: int, spared: int, direct: str) -> None:
    """proves: G-COPY-3; copies after a start keep their seqs, whenever its marks get into the log."""
    lossy = _Lossy(error, "a", "b")
    rig = lossy.rig
    lossy.crash_with_a_lost_copy(spared)
    lossy.recover()
    if direct == "before the copy":
        rig.write("b", "direct")
    rig.write("a", "next")
    rig.diff("b")
    if direct == "after the copy":
        rig.write("b", "direct")
    rig.advance(100)
    before = shown(rig, "b")
    assert sorted(before.values()) == sorted(["first", "next", *(["direct"] if direct else [])])
    assert min(set(before) - {1}) > 2
    rig.crash(CrashMode.DROP)
    assert shown(rig, "b") == before


@pytest.mark.parametrize("then", ["copy", "write"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])
def test_no_copy_takes_the_seq_of_a_direct_write_whose_log_write_failed(error: int, then: str) -> None:
    """proves: G-COPY-3, G-SEQ-2; the write was shown, and a power loss comes before a checkpoint has it."""
    lossy = _Lossy(error, "a", "b")
    rig = lossy.rig
    rig.write("b", "earlier")
    rig.advance(100)
    lossy.fails = True
    rig.write("b", "direct")
    rig.run()
    lossy.fails = False
    assert lossy.topic("b").in_flight.lost_from == 3, "it was shown and acked before its write failed"
    rig.send("POST", "/v0/topics/a", {"records": [{"data": "next"}]})
    if then == "write":
        rig.write("b", "later")
    rig.advance(100)
    before = shown(rig, "b")
    assert before[3] == "direct"
    assert lossy.topic("b").in_flight.lost_from == 3, "no checkpoint has it"
    rig.crash(CrashMode.DROP)
    del before[3]
    assert shown(rig, "b") == before


def test_copies_wait_for_the_mark_of_a_start_and_readers_do_not() -> None:
    """proves: G-COPY-3; the log of the source can be written, that of the dest cannot."""
    lossy = _Lossy(errno.EIO, "a", "b", shards=2)
    rig = lossy.rig
    assert [rig.server.engine.change_log.shards.names[lossy.topic(name).id % 2] for name in "ab"] == [
        "shard-01",
        "shard-00",
    ]
    lossy.log = "/shard-00/"
    lossy.crash_with_a_lost_copy(1)
    rig.write("a", "next")
    rig.advance(500)
    assert shown(rig, "b") == {1: "first"}
    lossy.recover()
    before = shown(rig, "b")
    assert list(before.values()) == ["first", "next"]
    rig.crash(CrashMode.DROP)
    assert shown(rig, "b") == before
