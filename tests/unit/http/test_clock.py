"""A wall clock that is wrong for a while, as clients of both APIs see it (http-v0 §19.4, http-v1 §0)."""

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from driftq.testing import CrashMode, ServerRig
from tests.unit.http.v1.client import Client

DAY = 86_400_000
HOUR = 3_600_000

Life = Callable[[ServerRig], None]

LIVES: dict[str, Life] = {
    "running on": lambda rig: None,
    "stopped and started": lambda rig: rig.restart(),
    "killed": lambda rig: rig.kill(),
    "power lost": lambda rig: rig.crash(CrashMode.DROP, 1),
}


@pytest.fixture(params=LIVES)
def live_on(request: pytest.FixtureRequest) -> Life:
    """What happens after the wrong time: each test holds whether or not the server restarts."""
    return LIVES[request.param]


def wrong_for_a_moment(rig: ServerRig, *, by: int = DAY) -> None:
    """One write while the clock is wrong, then the right time again."""
    right = rig.clock.wall_ms()
    rig.clock.set_wall(right + by)
    rig.write("marked", "at the wrong time")
    rig.advance(20)
    rig.clock.set_wall(right + 20)


def claim(rig: ServerRig, **fields: Any) -> list[int]:
    found = rig.ok("POST", "/v0/topics/q/claim", {"node": "w", "max": 10, **fields})
    return [job["$seq"] for job in found["claimed"]]


def queue(rig: ServerRig, *, durable: bool) -> None:
    rig.ok("PUT", "/v0/topics/q", {"type": "queue", "durability": "fsync", "leases_durable": durable})


@pytest.mark.parametrize("by", [-DAY, DAY])
@pytest.mark.parametrize("durable", [False, True])
def test_a_lease_of_one_second_ends_after_one_second(live_on: Life, by: int, *, durable: bool) -> None:
    """proves: G-TIME-1"""
    rig = ServerRig()
    queue(rig, durable=durable)
    rig.write("q", 1)
    wrong_for_a_moment(rig, by=by)
    live_on(rig)
    assert claim(rig, lease_ms=1000) == [1]
    rig.advance(1000)
    assert claim(rig) == []
    rig.advance(1)
    assert claim(rig) == [1]


def test_a_lease_that_was_given_at_the_wrong_time_ends_when_it_should(live_on: Life) -> None:
    """proves: G-TIME-1"""
    rig = ServerRig()
    queue(rig, durable=True)
    rig.write("q", 1)
    right = rig.clock.wall_ms()
    rig.clock.set_wall(right + DAY)
    assert claim(rig, lease_ms=5000) == [1]
    rig.advance(20)
    rig.clock.set_wall(right + 20)
    live_on(rig)
    rig.advance(5001)
    assert claim(rig) == [1]


def test_a_lease_shows_its_deadline_by_the_wall_clock() -> None:
    rig = ServerRig()
    queue(rig, durable=False)
    rig.write("q", 1)
    wrong_for_a_moment(rig)
    (job,) = rig.ok("POST", "/v0/topics/q/claim", {"node": "w", "lease_ms": 2000})["claimed"]
    assert job["deadline"] == rig.clock.wall_ms() + 2000


def test_a_delayed_nack_comes_back_when_it_should(live_on: Life) -> None:
    """proves: G-TIME-1"""
    rig = ServerRig()
    queue(rig, durable=True)
    rig.write("q", 1)
    claim(rig, lease_ms=60_000)
    rig.ok("POST", "/v0/topics/q/nack", {"node": "w", "seqs": [1], "delay_ms": 5000})
    wrong_for_a_moment(rig)
    live_on(rig)
    rig.advance(3900)
    assert claim(rig) == []
    rig.advance(1100)
    assert claim(rig) == [1]


def test_records_expire_by_their_age_whenever_the_clock_was_wrong(live_on: Life) -> None:
    """Those before the wrong time, at the wrong time and after it.

    proves: G-TIME-1, G-TIME-2
    """
    rig = ServerRig()
    for topic in ("t", "marked"):
        rig.ok("PUT", f"/v0/topics/{topic}", {"ttl_ms": 10_000, "durability": "fsync"})
    rig.write("t", "before")
    rig.advance(1000)
    wrong_for_a_moment(rig)
    rig.advance(1000)
    rig.write("t", "after")
    live_on(rig)
    rig.advance(2000)
    assert [record["data"] for record in rig.diff("t")["records"]] == ["before", "after"]
    assert len(rig.diff("marked")["records"]) == 1
    rig.advance(6001)
    assert [record["data"] for record in rig.diff("t")["records"]] == ["after"]
    rig.advance(1000)
    assert rig.diff("marked")["records"] == []
    rig.advance(2000)
    assert rig.diff("t")["records"] == []


@pytest.mark.parametrize("by", [-DAY, DAY])
def test_a_clock_that_was_corrected_while_the_server_was_down_extends_nothing(by: int) -> None:
    """What is left of a duration is never more than all of it."""
    rig = ServerRig()
    queue(rig, durable=True)
    rig.ok("PUT", "/v0/topics/t", {"ttl_ms": 10_000, "durability": "fsync"})
    rig.write("q", 1)
    rig.write("t", 1)
    claim(rig, lease_ms=10_000)
    rig.close()
    rig.clock.set_wall(rig.clock.wall_ms() + by)
    rig.start()
    rig.advance(10_002)
    assert claim(rig) == [1]
    assert rig.diff("t")["records"] == []


def test_a_clock_that_is_ahead_at_a_start_looks_like_downtime() -> None:
    """row: F-CLOCK-3"""
    rig = ServerRig()
    queue(rig, durable=True)
    rig.write("q", 1)
    claim(rig, lease_ms=60_000)
    rig.close()
    rig.clock.set_wall(rig.clock.wall_ms() + 60_001)
    rig.start()
    assert claim(rig) == [1]


def test_what_a_reader_saw_expire_stays_so_with_the_clock_set_back_once_more(live_on: Life) -> None:
    """proves: G-TOMB-6, G-TOMB-7"""
    rig = ServerRig()
    rig.ok("PUT", "/v0/topics/t", {"ttl_ms": 5000, "durability": "fsync"})
    rig.write("t", 1)
    wrong_for_a_moment(rig)
    rig.write("t", 2)
    rig.advance(5002)
    assert rig.diff("t")["records"] == []
    rig.clock.set_wall(rig.clock.wall_ms() - 3 * DAY)
    live_on(rig)
    found = rig.diff("t")
    assert (found["records"], found["tombstone"]["reason"]) == ([], "ttl")
    rig.write("t", 3)
    assert [record["$seq"] for record in rig.diff("t")["records"]] == [3]


def test_an_idempotency_window_ends_when_it_should(live_on: Life) -> None:
    """proves: G-TIME-1"""
    rig = ServerRig()
    rig.ok("PUT", "/v0/topics/t", {"idempotency_window_ms": 10_000, "durability": "fsync"})
    rig.write("t", 1, idempotency_key="before")
    wrong_for_a_moment(rig)
    rig.write("t", 2, idempotency_key="after")
    live_on(rig)
    rig.advance(5000)
    assert rig.write("t", 1, idempotency_key="before")["deduped"]
    assert rig.write("t", 2, idempotency_key="after")["deduped"]
    rig.advance(5002)
    assert not rig.write("t", 1, idempotency_key="before")["deduped"]
    assert not rig.write("t", 2, idempotency_key="after")["deduped"]


def test_stamps_never_go_back_and_catch_up_at_half_speed() -> None:
    """inv: 7. proves: G-SEQ-3"""
    rig = ServerRig()
    wrong_for_a_moment(rig, by=10_000)
    for number in range(30):
        rig.advance(1000)
        rig.write("t", number)
    stamps = [record["$ts"] for record in rig.diff("t", limit=1000)["records"]]
    assert stamps == sorted(stamps)
    steps = [after - before for before, after in pairwise(stamps)]
    assert set(steps[:15]) == {500}
    assert set(steps[-8:]) == {1000}
    assert stamps[-1] == rig.clock.wall_ms()


def test_a_machine_that_slept_wakes_to_leases_and_records_that_have_ended() -> None:
    rig = ServerRig()
    queue(rig, durable=False)
    rig.ok("PUT", "/v0/topics/t", {"ttl_ms": HOUR})
    rig.write("q", 1)
    rig.write("t", 1)
    assert claim(rig, lease_ms=60_000) == [1]
    _, sink = rig.stream("/v0/topics/q/work?node=x")
    sink.taken()
    rig.clock.suspend(HOUR + 1)
    assert rig.diff("t")["records"] == []
    rig.advance(1001)
    assert b'"$seq":1' in sink.taken(), "whoever waits for a job is told of it within a second"


def test_a_difference_above_a_second_is_in_ready_and_in_the_metrics() -> None:
    """row: F-CLOCK-1"""
    rig = ServerRig()
    rig.write("t", 1)
    assert "clock" not in rig.ok("GET", "/v0/ready")
    assert rig.ok("GET", "/v0/metrics", headers={"accept": "application/json"})["clock_ahead_ms"] == 0
    wrong_for_a_moment(rig, by=5000)
    ready = rig.ok("GET", "/v0/ready")
    assert ready["status"] == "ready"
    assert 4900 <= ready["clock"]["ahead_ms"] <= 5000
    text = rig.reply("GET", "/v0/metrics").whole.decode()
    (figure,) = [line for line in text.splitlines() if line.startswith("driftq_clock_ahead_ms ")]
    assert 4900 <= float(figure.split()[1]) <= 5000
    for _ in range(10):
        rig.write("t", 1)
        rig.advance(1000)
    assert "clock" not in rig.ok("GET", "/v0/ready")


# The broker


def in_an_hour(client: Client) -> str:
    return datetime.fromtimestamp((client.clock.wall_ms() + HOUR) / 1000, UTC).isoformat()


def test_a_deadline_one_hour_ahead_is_accepted_at_once(live_on: Life) -> None:
    """And one that has passed by the wall clock is refused. proves: G-TIME-3"""
    client = Client()
    client.create()
    wrong_for_a_moment(client)
    live_on(client)
    assert client.offer(deadline=in_an_hour(client)).status == 200
    passed = datetime.fromtimestamp((client.clock.wall_ms() - 1000) / 1000, UTC).isoformat()
    assert client.offer(deadline=passed).status == 400


def test_a_keyed_message_of_a_dead_owner_is_delivered_again() -> None:
    """And what waits behind it in its partition. proves: G-TIME-1"""
    client = Client()
    client.create()
    client.offer("first", idempotency_key="k")
    client.offer("second")
    wrong_for_a_moment(client)
    dead = client.consume(owner="dead", lease_ms=2000)
    assert dead.values()
    dead.close()
    other = client.consume(owner="other", lease_ms=2000)
    client.advance(2500)
    assert "first" in other.values()


def test_a_key_is_free_again_when_its_window_is_over(live_on: Life) -> None:
    """proves: G-TIME-1"""
    client = Client(idem_ttl_ms=60_000)
    client.create()
    wrong_for_a_moment(client)
    client.offer(idempotency_key="k")
    live_on(client)
    client.advance(30_000)
    client.offer(idempotency_key="k")
    assert len(client.all()) == 1
    client.advance(30_002)
    client.offer(idempotency_key="k")
    assert len(client.all()) == 2


def test_a_message_that_failed_is_tried_again_when_its_backoff_is_over(live_on: Life) -> None:
    """proves: G-TIME-1"""
    client = Client()
    client.create()
    client.offer(retry_policy={"max_attempts": 5, "backoff_ms": 5000, "max_backoff_ms": 5000})
    consumer = client.consume()
    consumer.nack(consumer.one()["offset"])
    consumer.close()
    wrong_for_a_moment(client)
    live_on(client)
    consumer = client.consume()
    client.advance(3000)
    assert consumer.take() == []
    client.advance(2500)
    assert consumer.one()["attempts"] == 2
