"""What cap, TTL and deletes leave behind, as readers see it; order and durability of writes (http-v0 §4, §19.7)."""

import random
from typing import Any

import pytest

from driftq.testing import CrashMode, ServerRig, decoded_reply, settled

PATH = "/v0/topics/t"


@pytest.fixture
def rig() -> ServerRig:
    return ServerRig()


def state(rig: ServerRig) -> dict[str, Any]:
    found: dict[str, Any] = rig.ok("GET", f"{PATH}?touch=false")
    return found


def seqs(rig: ServerRig, from_seq: int = 0) -> list[int]:
    return [record["$seq"] for record in rig.diff("t", from_seq, limit=1000)["records"]]


def test_marks_keep_their_order_whatever_happens(rig: ServerRig) -> None:
    """inv: 2, 3, 4, 5"""
    dice = random.Random(7)
    rig.ok("PUT", PATH, {"cap_records": 20, "ttl_ms": 500})
    earliest, head = 1, 0
    for _ in range(300):
        step = dice.randrange(6)
        if step < 2:
            rig.ok("POST", PATH, {"records": [{"data": "x", "tag": f"t{dice.randrange(3)}"}] * dice.randint(1, 8)})
        elif step == 2:
            rig.ok("POST", f"{PATH}/delete", {"match": f"t{dice.randrange(3)}"})
        elif step == 3:
            rig.ok("POST", f"{PATH}/delete", {"before_seq": dice.randint(0, 2 * head)})
        elif step == 4:
            rig.clock.advance(dice.randrange(300))
        else:
            rig.ok("PUT", PATH, {"cap_records": dice.choice([0, 5, 20]), "ttl_ms": dice.choice([0, 100, 500])})
        found = state(rig)
        assert 1 <= found["earliest_seq"] <= found["head_seq"] + 1 == found["next_seq"]
        assert found["earliest_seq"] >= earliest
        assert found["head_seq"] == head or step < 2
        assert (found["earliest_seq"] == found["next_seq"]) == (found["count"] == 0) == (found["bytes"] == 0)
        earliest, head = found["earliest_seq"], found["head_seq"]
        assert len(seqs(rig)) == found["count"]


def test_deleted_records_neither_fill_a_cap_nor_leave_a_tombstone(rig: ServerRig) -> None:
    """inv: 13"""
    rig.ok("PUT", PATH, {"cap_records": 4})
    rig.write("t", 1, 2, 3, 4)
    rig.ok("POST", f"{PATH}/delete", {"before_seq": 3})
    rig.write("t", 5, 6)
    assert (rig.diff("t")["tombstone"], seqs(rig)) == (None, [3, 4, 5, 6])


def test_a_cap_takes_exactly_what_is_too_much_after_a_delete_in_the_middle(rig: ServerRig) -> None:
    """inv: 14"""
    rig.ok("PUT", PATH, {"cap_records": 4})
    rig.ok("POST", PATH, {"records": [{"data": n, "tag": "x" if n == 2 else "y"} for n in range(1, 5)]})
    rig.ok("POST", f"{PATH}/delete", {"match": "x"})
    rig.write("t", 5, 6, 7)
    assert seqs(rig) == [4, 5, 6, 7]
    tombstone = rig.diff("t")["tombstone"]
    assert (tombstone["gap_from"], tombstone["gap_to"], tombstone["reason"]) == (1, 3, "cap")


def test_a_prefix_that_was_deleted_stays_silent_also_behind_its_ttl_and_a_restart(rig: ServerRig) -> None:
    """inv: 15"""
    rig.ok("PUT", PATH, {"ttl_ms": 100_000, "durability": "fsync"})
    rig.write("t", 1, 2)
    rig.clock.advance(90_000)
    rig.write("t", 3)
    rig.ok("POST", f"{PATH}/delete", {"before_seq": 3})
    rig.clock.advance(20_000)
    for again in (rig.kill, rig.restart, rig.crash):
        assert (rig.diff("t")["tombstone"], seqs(rig)) == (None, [3])
        again()


def test_times_never_go_back_with_the_clock(rig: ServerRig) -> None:
    """inv: 7"""
    for step in (5, -60_000, 3, -1, 120_000, -5):
        rig.clock.set_wall(rig.clock.wall_ms() + step)
        rig.write("t", step)
    rig.restart()
    rig.clock.set_wall(1_000_000)
    rig.write("t", "long ago")
    times = [record["$ts"] for record in rig.diff("t")["records"]]
    assert times == sorted(times)
    assert len(times) == 7


def test_writers_side_by_side_get_numbers_without_gaps_each_batch_its_own(rig: ServerRig) -> None:
    """inv: 1, 26"""
    rig = ServerRig(seed=11)
    rig.ok("PUT", PATH, {"durability": "fsync"})
    answers = []
    for n in range(60):
        records = [{"data": [n, k]} for k in range(1 + n % 4)]
        answers.append((records, rig.send("POST", PATH, {"records": records})))
        if n % 7 == 0:
            rig.run()
    rig.run()
    found: dict[int, Any] = {}
    for records, answer in answers:
        reply = settled(answer)
        assert reply is not None
        given = decoded_reply(reply).body["seqs"]
        assert given == list(range(given[0], given[0] + len(records)))
        found |= {seq: record["data"] for seq, record in zip(given, records, strict=True)}
    assert sorted(found) == list(range(1, len(found) + 1))
    assert {record["$seq"]: record["data"] for record in rig.diff("t", limit=1000)["records"]} == found


def test_a_disk_topic_never_gives_an_acked_number_twice(rig: ServerRig) -> None:
    """inv: 79"""
    rig.ok("PUT", PATH, {"durability": "disk"})
    acked = 0
    for mode in (CrashMode.DROP, CrashMode.TORN, CrashMode.KEEP):
        for _ in range(30):
            first = rig.write("t", *range(9))["first_seq"]
            assert first > acked
            acked = first + 8
        rig.crash(mode, seed=acked)
    assert rig.write("t", "next")["first_seq"] > acked


def test_what_was_acked_after_a_change_to_fsync_is_there_after_a_crash(rig: ServerRig) -> None:
    """inv: 87"""
    rig.ok("PUT", PATH, {"durability": "ephemeral"})
    rig.write("t", "lost")
    rig.ok("PUT", PATH, {"durability": "fsync"})
    rig.write("t", "kept")
    rig.crash()
    assert [(record["$seq"], record["data"]) for record in rig.diff("t")["records"]] == [(2, "kept")]
