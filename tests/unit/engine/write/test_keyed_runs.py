"""Single writes with keys that come in one turn: a frame for each, one submission for all (`engine/write/appender`)."""

from typing import Any

import pytest

from driftq.testing import ServerRig
from driftq.testing.server_rig import decoded_reply, settled

PATH = "/v0/topics/t"
WINDOW_MS = 60_000


def started(**config: Any) -> ServerRig:
    rig = ServerRig()
    rig.ok("PUT", PATH, {"idempotency_window_ms": WINDOW_MS, **config})
    rig.write("t", 0)
    return rig


def send(rig: ServerRig, *writes: tuple[str | None, Any]) -> list[Any]:
    """Send writes in one turn, each a key and its data, and return the answers."""
    answers = []
    for key, data in writes:
        body = {"records": [{"data": data, "tag": f"t{data}"}], **({} if key is None else {"idempotency_key": key})}
        answers.append(rig.send("POST", PATH, body))
    rig.run()
    return [_decoded(answer) for answer in answers]


def _decoded(answer: Any) -> Any:
    reply = settled(answer)
    assert reply is not None
    return decoded_reply(reply)[1]


def submissions(rig: ServerRig) -> int:
    return rig.server.engine.shards.all[0].last_number


@pytest.mark.parametrize(("durability", "expected"), [("disk", 1), ("fsync", 1), ("memory", 20)])
def test_a_run_of_keyed_writes_is_one_submission(durability: str, expected: int) -> None:
    rig = started(durability=durability)
    before = submissions(rig)
    answers = send(rig, *((f"k{n}", n) for n in range(20)))
    assert submissions(rig) - before == expected
    assert [answer["first_seq"] for answer in answers] == list(range(2, 22))
    rig.close()


def test_writes_with_and_without_keys_keep_their_order() -> None:
    rig = started(durability="disk")
    writes = [("a", 1), ("b", 2), (None, 3), (None, 4), ("c", 5), (None, 6)]
    answers = send(rig, *writes)
    assert [answer["first_seq"] for answer in answers] == list(range(2, 8))
    assert [record["data"] for record in rig.diff("t", 1)["records"]] == [1, 2, 3, 4, 5, 6]
    rig.close()


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
@pytest.mark.parametrize("config", [{}, {"cap_records": 7}, {"cap_bytes": 9}])
def test_a_replay_gives_what_was_shown(durability: str, config: dict[str, Any]) -> None:
    rig = started(durability=durability, **config)
    for turn in range(4):
        send(rig, *((f"k{turn}.{n}", n) for n in range(10)))
        rig.clock.advance(20)
    shown = rig.diff("t", include_tags=True)
    rig.kill()
    again = rig.diff("t", include_tags=True)
    assert again["records"] == shown["records"]
    assert again["earliest_seq"] == shown["earliest_seq"]
    (answer,) = send(rig, ("k2.4", 99))
    assert (answer["deduped"], answer["first_seq"]) == (True, 26)
    rig.close()


def test_frames_without_a_log_are_applied_in_one_go() -> None:
    rig = started(durability="ephemeral", cap_records=5)
    answers = send(rig, *((f"k{n}", n) for n in range(10)))
    assert [answer["first_seq"] for answer in answers] == list(range(2, 12))
    assert [record["data"] for record in rig.diff("t")["records"]] == [5, 6, 7, 8, 9]
    (answer,) = send(rig, ("k3", 1))
    assert (answer["deduped"], answer["first_seq"]) == (True, 5)
    rig.close()
