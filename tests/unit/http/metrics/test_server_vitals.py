"""The vitals of a server: what each caller may see, and that they follow the server."""

import errno
from typing import Any

from msgspec import convert, json

from driftq.model.vitals import Vitals
from driftq.system.machine import DiskUsage
from driftq.testing import FaultyDisk, ServerRig, SimDisk

JSON = {"accept": "application/json"}


def vitals(rig: ServerRig, key: str | None = None) -> Vitals:
    reply: Any = rig.reply("GET", "/v0/metrics", headers=dict(JSON), key=key)
    assert reply.status == 200
    return convert(json.decode(reply.body)["vitals"], Vitals)


def text(rig: ServerRig, path: str) -> str:
    reply: Any = rig.reply("GET", path)
    found: str = reply.body.decode()
    return found


def test_a_caller_sees_its_own_rights_and_only_an_admin_sees_paths() -> None:
    rig = ServerRig(keys="boss,guest:read:orders.,part:admin+read:x")
    boss, guest, part = (vitals(rig, key) for key in ("boss", "guest", "part"))
    assert (boss.caller.key, boss.caller.scopes) == (1, ["read", "write", "delete", "admin"])
    assert (guest.caller.key, guest.caller.scopes, guest.caller.prefixes) == (2, ["read"], ["orders."])
    assert boss.place is not None
    assert boss.place.data_dir == rig.server.hot_root
    assert (guest.place, part.place) == (None, None)
    rig.close()


def test_without_keys_the_caller_may_do_everything() -> None:
    rig = ServerRig()
    assert vitals(rig).caller.key is None
    assert vitals(rig).place is not None
    rig.close()


def test_the_age_of_the_checkpoint_and_its_failures_are_shown() -> None:
    """row: F-CHECKPOINT-1"""
    broken = [False]
    rig = ServerRig(
        checkpoint_interval_ms=10**9,
        wrap=lambda disk: FaultyDisk(
            disk, error=errno.EIO, forever=True, when=lambda _, path: broken[0] and "snapshot" in path
        ),
    )
    rig.ok("POST", "/v0/topics/t", {"records": [{"data": 1}]})
    rig.runtime.advance(5000)
    before = vitals(rig).checkpoint
    assert before.age_ms >= 5000
    assert before.wal_bytes > 0
    broken[0] = True
    rig.server.engine.checkpointer.run()
    rig.run()
    assert vitals(rig).checkpoint.failures == 1
    broken[0] = False
    rig.server.engine.checkpointer.run()
    rig.run()
    after = vitals(rig).checkpoint
    assert (after.age_ms < 1000, after.wal_bytes, after.failures) == (True, 0, 1)
    for path in ("/v0/metrics", "/metrics"):
        page = text(rig, path)
        assert "driftq_checkpoint_failures_total 1\n" in page
        assert "driftq_checkpoint_age_seconds 0" in page
        assert "driftq_wal_bytes_since_checkpoint 0\n" in page
    rig.close()


def test_the_disk_of_the_data_directory_is_shown() -> None:
    rig = ServerRig()
    rig.run()
    rig.server.engine.space.last = DiskUsage(10, 100)
    disk = vitals(rig).disk
    assert disk is not None
    assert (disk.free_bytes, disk.total_bytes, disk.fill_bytes_per_s) == (10, 100, None)
    assert "driftq_disk_free_bytes 10\n" in text(rig, "/metrics")
    rig.close()


def test_the_newest_backup_is_known_also_after_a_restart() -> None:
    disk = SimDisk()
    rig = ServerRig(disk=disk, backup_dir="/backups")
    assert vitals(rig).last_backup_ts is None
    assert "driftq_last_backup" not in text(rig, "/metrics")
    rig.ok("POST", "/v0/topics/t", {"records": [{"data": 1}]})
    rig.reply("POST", "/v0/backups", {})
    rig.run()
    taken = vitals(rig).last_backup_ts
    assert taken is not None
    rig.close()
    again = ServerRig(disk=disk, backup_dir="/backups")
    again.run()
    assert vitals(again).last_backup_ts == taken
    assert f"driftq_last_backup_timestamp_seconds {taken // 1000}" in text(again, "/metrics")
    again.close()


def test_the_clock_of_the_server_is_shown() -> None:
    rig = ServerRig()
    assert vitals(rig).clock.now_ms == rig.clock.wall_ms()
    assert vitals(rig).clock.ahead_ms == 0
    rig.close()
