"""Who may ask for a backup, and where it may go."""

import pytest

from driftq.testing import ServerRig, SimDisk


def rig(**changes: object) -> ServerRig:
    """A server whose disk has a place for backups."""
    return ServerRig(disk=SimDisk(roots=("/data", "/to", "/elsewhere")), **changes)  # type: ignore[arg-type]


def test_a_backup_is_begun_followed_and_listed() -> None:
    server = rig(backup_dir="/to")
    server.ok("POST", "/v0/topics/t", {"records": [{"data": 1}]})
    status, begun = server.ask("POST", "/v0/backups")
    assert status == 202
    server.runtime.run_until_idle()
    done = server.ok("GET", f"/v0/backups/{begun['backup']['id']}")["backup"]
    assert (done["state"], done["to"], done["error"]) == ("done", "/to", None)
    assert [one["id"] for one in server.ok("GET", "/v0/backups")["backups"]] == [done["id"]]
    assert server.disk.names(f"/to/backups/{done['id']}") == ["manifest.json", "snapshot.bin"]


@pytest.mark.parametrize("key", ["reader:read", "writer:rw+delete", "some:admin:orders."])
def test_only_an_admin_of_every_name_may(key: str) -> None:
    server = rig(backup_dir="/to", keys=f"root,{key}")
    headers = {"authorization": f"Bearer {key.partition(':')[0]}"}
    for method, path in (("POST", "/v0/backups"), ("GET", "/v0/backups"), ("GET", "/v0/backups/b")):
        assert server.ask(method, path, headers=headers)[0] == 403
    assert server.ask("POST", "/v0/backups", headers={"authorization": "Bearer root"})[0] == 202


@pytest.mark.parametrize(
    ("changes", "to", "status"),
    [
        ({"backup_dir": "/to"}, None, 202),
        ({"backup_dir": "/to"}, "/to/nightly", 202),
        ({"backup_dir": "/to"}, "/to/../elsewhere", 403),
        ({"backup_dir": "/to"}, "/elsewhere", 403),
        ({"backup_dir": "/to"}, "nightly", 400),
        ({}, None, 400),
        ({}, "/elsewhere", 400),
        ({"backup_dir": "/data"}, "/data/inside", 400),
        ({"host": "0.0.0.0"}, "/elsewhere", 400),
        ({"host": "0.0.0.0", "backup_dir": "/to"}, "/to", 202),
    ],
)
def test_it_goes_where_the_operator_has_said(changes: dict[str, object], to: str | None, status: int) -> None:
    body = {} if to is None else {"to": to}
    assert rig(**changes).ask("POST", "/v0/backups", body)[0] == status


def test_there_is_one_at_a_time() -> None:
    server = rig(backup_dir="/to")
    server.runtime.hold("driftq-backup")
    assert server.ask("POST", "/v0/backups")[0] == 202
    assert server.ask("POST", "/v0/backups")[0] == 429
    server.runtime.release("driftq-backup")
    server.runtime.run_until_idle()
    assert server.ask("POST", "/v0/backups")[0] == 202
