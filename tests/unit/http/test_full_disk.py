"""What callers of both dialects are told while the disk is full, and of any other failed write."""

import errno
import logging

import pytest

from driftq.testing import FaultyDisk, ServerRig


class _Failing:
    """A server whose log can be made to fail with an error."""

    def __init__(self, error: int) -> None:
        self.fails = False
        self.rig = ServerRig(
            wrap=lambda disk: FaultyDisk(
                disk,
                error=error,
                forever=True,
                when=lambda operation, path: self.fails and operation == "pwritev" and "/wal/" in path,
            )
        )
        self.rig.ok("PUT", "/v0/topics/t", {"durability": "fsync"})
        self.rig.ok("POST", "/v1/topics", {"name": "b"})


_WRITE = {"records": [{"data": 1}]}


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_write_without_space_is_507_in_v0_and_503_in_v1(error: int) -> None:
    """row: F-DISK-1"""
    failing = _Failing(error)
    rig = failing.rig
    failing.fails = True
    reply = rig.reply("POST", "/v0/topics/t", _WRITE)
    assert (reply.status, dict(reply.headers)[b"retry-after"]) == (507, b"1")
    assert rig.code("POST", "/v0/topics/t", _WRITE) == (507, "disk_full")
    produced = rig.reply("POST", "/v1/produce", {"topic": "b", "key": "k", "value": "v"})
    assert (produced.status, dict(produced.headers)[b"retry-after"]) == (503, b"1")
    ready = rig.ok("GET", "/v0/ready")
    assert (ready["status"], ready["writable"], ready["reason"]) == ("ready", False, "disk_full")
    assert "before_seq" in ready["message"]
    assert b"driftq_wal_read_only 1" in rig.reply("GET", "/metrics").body
    assert rig.diff("t")["records"] == []
    failing.fails = False
    rig.advance(1100)
    assert rig.write("t", 1)["first_seq"] == 1
    assert "writable" not in rig.ok("GET", "/v0/ready")
    assert b"driftq_wal_read_only 0" in rig.reply("GET", "/metrics").body


def test_the_log_says_when_a_disk_is_full_and_when_it_is_not_any_more(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    failing = _Failing(errno.ENOSPC)
    for _ in range(2):
        failing.fails = True
        for _ in range(3):
            failing.rig.reply("POST", "/v0/topics/t", _WRITE)
        failing.fails = False
        failing.rig.advance(1100)
        failing.rig.write("t", 1)
    lines = [
        (record.levelname, record.message) for record in caplog.records if record.name == "driftq.engine.writer_watch"
    ]
    refused, accepted = ("ERROR", "writes are refused, reads are answered"), ("INFO", "writes are accepted again")
    assert lines == [refused, accepted] * 2


@pytest.mark.parametrize("error", [errno.EIO, errno.EFBIG])
def test_any_other_failed_write_is_500(error: int) -> None:
    failing = _Failing(error)
    failing.fails = True
    assert failing.rig.code("POST", "/v0/topics/t", _WRITE) == (500, "internal")
    assert failing.rig.reply("POST", "/v1/produce", {"topic": "b", "key": "k", "value": "v"}).status == 500
    assert failing.rig.ok("GET", "/v0/ready").get("reason") != "disk_full"
