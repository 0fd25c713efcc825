"""Create, produce, deliver, ack: the broker from one end to the other."""

import pytest

from driftq.errors import (
    InternalError,
    InvalidRequestError,
    NotOwnerError,
    OverloadedError,
    PayloadTooLargeError,
    PreconditionError,
)
from driftq.model.message import Envelope, Message
from driftq.model.names import broker_topic
from driftq.testing import FaultyDisk
from tests.unit.features.broker.rig import BrokerRig, message


@pytest.fixture
def rig() -> BrokerRig:
    rig = BrokerRig()
    rig.create()
    return rig


def test_create_tells_how_many_partitions_there_really_are(rig: BrokerRig) -> None:
    """inv1: 13, 14, 15"""
    assert rig.create("b", 0) == 1
    assert rig.create("a", 3) == 3
    assert rig.create("a", 5) == 3
    assert rig.broker.topics() == ["a", "b", "t"]
    for partitions in (-1, 1025):
        with pytest.raises(InvalidRequestError, match="invalid partitions"):
            rig.create("c", partitions)
    with pytest.raises(InvalidRequestError, match="name is required"):
        rig.create("")
    with pytest.raises(InvalidRequestError, match="invalid name"):
        rig.create("a\x7fb")
    rig.restart()
    assert rig.broker.topics() == ["a", "b", "t"]
    rig.crash()
    assert rig.create("a") == 3


def test_two_creators_of_one_name_make_one_topic(rig: BrokerRig) -> None:
    first, second = rig.broker.create_topic("x", 4), rig.broker.create_topic("x", 2)
    assert (rig.run(first), second.result()) == (4, 4)


def test_any_name_is_a_topic_of_the_engine(rig: BrokerRig) -> None:
    names = ["ü t", "id-00", "a/b", "x" * 255, ".hidden"]
    for name in names:
        rig.create(name)
        rig.produce(name, topic=name)
    logs = {broker_topic(name) for name in names}
    assert len(logs) == len(names)
    assert logs < {topic.name for topic in rig.engine_rig.engine.catalog.by_id.values()}
    rig.crash()
    for name in names:
        assert rig.consume(name).one().message.value == name


def test_a_message_is_one_record_of_the_log(rig: BrokerRig) -> None:
    rig.create("p", 3)
    rig.produce("one", topic="p", key="c", run_id="r")
    (record,) = rig.engine_rig.read("@p")
    assert record["data"] == {"key": "c", "value": "one", "envelope": {"run_id": "r"}}
    assert (record["$seq"], record["$tag"]) == (1, "p2")


def test_offsets_are_the_topics_and_have_no_gaps(rig: BrokerRig) -> None:
    """inv1: 19, 20, 21"""
    rig.create("p", 3)
    with pytest.raises(InvalidRequestError, match="out of range"):
        rig.produce("v", topic="p", partition_override=3)
    places = [rig.produce("v", topic="p", key=key)[0] for key in ("user:1", "user:2", "a", "b", "c", "")]
    assert [place.partition for place in places] == [1, 0, 1, 1, 2, 0]
    assert [place.offset for place in places] == [0, 1, 2, 3, 4, 5]


def test_produce_refuses_what_cannot_be_stored(rig: BrokerRig) -> None:
    """inv1: 16, 23"""
    with pytest.raises(InvalidRequestError, match="topic does not exist"):
        rig.produce("v", topic="unknown")
    now = rig.engine_rig.engine.time.now()
    with pytest.raises(InvalidRequestError, match="message deadline exceeded"):
        rig.broker.produce("t", message("v"), deadline_ms=now - 1)
    rig.run(rig.broker.produce("t", message("v"), deadline_ms=now))
    with pytest.raises(PayloadTooLargeError, match="message too large"):
        rig.produce("x" * ((1 << 20) + 1))
    assert rig.produce("v")[0].offset == 1


def test_target_topic_is_where_it_goes(rig: BrokerRig) -> None:
    """inv1: 18"""
    rig.create("other")
    assert rig.produce("v", topic="nowhere", target_topic="other")[0].topic == "other"
    assert rig.consume("other").one().message == Message("v", "", Envelope(target_topic="other"))


def test_first_deliveries_come_in_order_up_to_the_limits(rig: BrokerRig) -> None:
    """inv1: 30, 33, 34"""
    rig.produce(*map(str, range(80)))
    wide = rig.consume(credit=0, lease_ms=60_000)
    assert wide.offsets() == list(range(64))
    wide.ack(7)
    assert wide.offsets() == [64]
    narrow = rig.consume(group="other", lease_ms=60_000)
    assert narrow.offsets() == list(range(8))
    narrow.ack(0)
    assert narrow.offsets() == [8]


def test_streams_of_a_group_take_turns(rig: BrokerRig) -> None:
    """inv1: 31, 32, 35"""
    one, two = rig.consume(owner="x"), rig.consume(owner="x")
    seen = []
    for _ in range(6):
        rig.produce("v")
        for consumer, other in ((one, two), (two, one)):
            for delivery in consumer.take():
                seen.append(consumer)
                other.ack(delivery.offset)
    assert seen == [one, two, one, two, one, two]


def test_a_stream_that_takes_nothing_holds_nobody_up(rig: BrokerRig) -> None:
    slow, quick = rig.consume(owner="slow"), rig.consume(owner="quick")
    slow.open = False
    rig.produce("0", "1", "2")
    assert (slow.offsets(), quick.offsets()) == ([], [0, 1, 2])
    quick.close()
    rig.produce("3")
    assert slow.offsets() == []
    slow.open = True
    slow.stream.wake()
    assert slow.offsets() == [3]


def test_partitions_are_served_in_turns() -> None:
    rig = BrokerRig()
    rig.create("p", 3)
    for number in range(9):
        rig.produce("v", topic="p", partition_override=number // 3)
    got = rig.consume("p", credit=0).take()
    assert [delivery.partition for delivery in got] == [0, 1, 2] * 3
    assert [delivery.offset for delivery in got] == [0, 3, 6, 1, 4, 7, 2, 5, 8]


def test_acks_are_checked_in_order(rig: BrokerRig) -> None:
    """inv1: 41, 42, 43"""
    rig.produce("0", "1")
    consumer = rig.consume(credit=1)
    consumer.take()
    broker = rig.broker
    with pytest.raises(InvalidRequestError, match="topic does not exist"):
        broker.ack(consumer.place(0)._replace(topic="no"), "a")
    with pytest.raises(InvalidRequestError, match="partition out of range"):
        broker.ack(consumer.place(0, 1), "a")
    for place in (consumer.place(1), consumer.place(9), consumer.place(0)._replace(group="no")):
        with pytest.raises(InvalidRequestError, match="message is not in-flight"):
            broker.ack(place, "a")
        with pytest.raises(InvalidRequestError, match="message is not in-flight"):
            broker.nack(place, "a")
    with pytest.raises(NotOwnerError, match="not owner"):
        broker.ack(consumer.place(0), "b")
    with pytest.raises(NotOwnerError, match="not owner"):
        broker.nack(consumer.place(0), "b")
    consumer.ack(0)
    rig.run(broker.ack(consumer.place(0), "anybody"))
    with pytest.raises(InvalidRequestError, match="message is not in-flight"):
        broker.nack(consumer.place(0), "a")
    assert rig.lag() == 1


def test_of_two_acks_at_once_both_succeed_and_one_is_logged(rig: BrokerRig) -> None:
    rig.produce("0")
    consumer = rig.consume()
    consumer.take()
    first, second = (rig.broker.ack(consumer.place(0), "a") for _ in range(2))
    assert (rig.run(first), second.result()) == (None, None)
    assert rig.lag() == 0


def test_a_lease_ends_at_its_deadline_and_is_seen_within_a_tick(rig: BrokerRig) -> None:
    """inv1: 40, 45, 49"""
    consumer = rig.consume(lease_ms=1000)
    other = rig.consume(owner="b", lease_ms=60_000)
    rig.produce("v")
    assert consumer.one().attempts == 1
    rig.advance(1000)
    assert (consumer.offsets(), other.offsets()) == ([], [])
    rig.advance(251)
    again = other.one()
    assert (again.attempts, again.last_error) == (2, "ack_timeout")
    with pytest.raises(NotOwnerError):
        consumer.ack(0)
    other.ack(0)


def test_what_a_closed_stream_was_given_stays_its_owners(rig: BrokerRig) -> None:
    """inv1: 36, 37, 46"""
    rig.produce("0", "1")
    leaver = rig.consume(lease_ms=5000)
    assert leaver.offsets() == [0, 1]
    leaver.close()
    stayer = rig.consume(owner="b")
    rig.advance(4999)
    assert stayer.offsets() == []
    leaver.ack(0)
    stayer.close()
    rig.advance(1000)
    leaver.ack(1)  # late, and nobody else has it
    assert rig.lag() == 0


def test_nacks_come_back_at_once_and_then_wait(rig: BrokerRig) -> None:
    """inv1: 47, 48, 78"""
    rig.produce("v")
    consumer = rig.consume(lease_ms=60_000)
    consumer.take()
    consumer.nack(0, "  ")
    assert consumer.one()[2:4] == (2, "nack")
    waits = []
    for number in range(8):
        consumer.nack(0, f"e{number}")
        waited = 0
        while not (got := consumer.take()):
            rig.advance(1)
            waited += 1
        assert got[0][2:4] == (3 + number, f"e{number}")
        waits.append(waited)
    for waited, least in zip(waits, (100, 200, 400, 800, 1600, 3200, 5000, 5000), strict=True):
        assert least < waited <= least + 251


def test_a_second_nack_changes_the_error_alone(rig: BrokerRig) -> None:
    rig.produce("v", retry=(0, 1000, 0))
    consumer = rig.consume(lease_ms=60_000)
    consumer.take()
    consumer.nack(0, "first")
    rig.advance(400)
    consumer.nack(0, "second")
    rig.advance(599)
    assert consumer.take() == []
    rig.advance(252)
    assert consumer.one()[2:4] == (2, "second")


def test_backoff_doubles_up_to_its_cap(rig: BrokerRig) -> None:
    """inv1: 50"""
    rig.produce("v", retry=(0, 250, 1000))
    consumer = rig.consume(lease_ms=60_000)
    consumer.take()
    for delay in (250, 500, 1000, 1000):
        consumer.nack(0)
        rig.advance(delay)
        assert consumer.take() == []
        rig.advance(251)
        assert len(consumer.take()) == 1


def test_a_long_reason_is_cut_at_a_character(rig: BrokerRig) -> None:
    """inv1: 77"""
    rig.produce("v")
    consumer = rig.consume()
    consumer.take()
    consumer.nack(0, "€" * 5000)
    assert consumer.one().last_error == "€" * 1365


def test_due_retries_go_before_fresh_messages_and_keep_their_place(rig: BrokerRig) -> None:
    rig = BrokerRig(in_flight_max=3)
    rig.create()
    rig.produce(*"01234", retry=(0, 500, 0))
    consumer = rig.consume(credit=0, lease_ms=60_000)
    assert consumer.offsets() == [0, 1, 2]
    consumer.nack(2)
    consumer.nack(0)
    assert consumer.offsets() == []
    rig.advance(800)
    assert consumer.offsets() == [0, 2]
    consumer.ack(1)
    assert consumer.offsets() == [3]


def test_acks_out_of_order_survive_a_crash_and_holes_come_back(rig: BrokerRig) -> None:
    """inv1: 52, 53"""
    rig.produce(*"01234")
    consumer = rig.consume()
    consumer.take()
    consumer.ack(1)
    consumer.ack(2)
    for life in (rig.crash, rig.restart):
        life()
        again = rig.consume(lease_ms=100)
        assert again.offsets() == [0, 3, 4]
    again.ack(0)
    rig.crash()
    assert rig.consume().offsets() == [3, 4]


def test_failures_survive_a_crash(rig: BrokerRig) -> None:
    rig.produce("0", retry=(0, 5000, 0))
    rig.produce("1")
    consumer = rig.consume()
    consumer.take()
    consumer.nack(0, "boom")
    consumer.nack(1, "bang")
    for life in (rig.crash, rig.restart):
        life()
        again = rig.consume(owner="b", lease_ms=60_000)
        assert [(d.offset, d.attempts, d.last_error) for d in again.take()] == [(1, 2, "bang")]
        with pytest.raises(InvalidRequestError, match="not in-flight"):
            again.ack(0)
    rig.advance(5252)
    assert again.one()[1:4] == (0, 2, "boom")


def test_a_message_that_fails_too_often_is_a_dead_letter(rig: BrokerRig) -> None:
    """inv1: 56, 57"""
    rig.create("p", 2)
    rig.produce("keep", "v", topic="p", key="k", retry=(2, 30_000, 0), tenant_id="x", target_topic="p")
    consumer = rig.consume("p", lease_ms=1000)
    first, _ = consumer.take()
    partition = first.partition
    consumer.nack(1, "one", partition)
    consumer.stream.lease_ms = 1000
    rig.advance(30_300)
    assert [(d.offset, d.attempts) for d in consumer.take() if d.offset == 1] == [(1, 2)]
    consumer.close()
    rig.advance(1300)
    assert "dlq.p" in rig.broker.topics()
    assert rig.broker.partitions("dlq.p") == 2
    letter = next(d for d in rig.consume("dlq.p").take() if d.message.value == "v")
    envelope = letter.message.envelope
    assert envelope is not None
    assert envelope.dlq is not None
    assert (envelope.tenant_id, envelope.target_topic, envelope.retry_policy, envelope.redrive_policy) == (
        "x",
        "",
        None,
        None,
    )
    dlq = envelope.dlq
    assert (dlq.original_topic, dlq.original_partition, dlq.original_offset) == ("p", partition, 1)
    assert (dlq.attempts, dlq.last_error, dlq.group) == (2, "one", "g")
    assert (letter.attempts, letter.last_error) == (1, "")
    assert rig.broker.counters.dead_letters["p", "max_attempts_reached"] >= 1
    rig.crash()
    assert 1 not in rig.consume("p").offsets()


def test_backpressure_counts_what_is_open() -> None:
    """inv1: 59, 60, 61"""
    rig = BrokerRig(partition_msgs_max=2, partition_bytes_max=20, dev_limits=True)
    rig.create()
    with pytest.raises(OverloadedError, match="partition_buffer_bytes_full"):
        rig.produce("x" * 20)
    rig.produce("x" * 9, "b")
    with pytest.raises(OverloadedError, match="partition_buffer_full"):
        rig.produce("c")
    consumer = rig.consume()
    assert consumer.offsets() == [0, 1]
    consumer.ack(1)
    rig.produce("c")
    with pytest.raises(OverloadedError, match="partition_buffer_full"):
        rig.produce("d")
    rig.crash()
    with pytest.raises(OverloadedError, match="partition_buffer_full"):
        rig.produce("d")
    assert rig.broker.counters.rejected == {"partition_buffer_full": 1}


def test_writes_under_way_count_too() -> None:
    rig = BrokerRig(partition_msgs_max=2)
    rig.create()
    rig.engine_rig.hold_wal()
    for value in "ab":
        rig.broker.produce("t", message(value))
    with pytest.raises(OverloadedError):
        rig.broker.produce("t", message("c"))
    rig.engine_rig.release_wal()


def test_a_group_that_left_or_never_caught_up_holds_nobody_up() -> None:
    """inv1: 62"""
    rig = BrokerRig(partition_msgs_max=3, group_idle_ms=1500)
    rig.create()
    live, stalling = rig.consume(group="live"), rig.consume(group="stalling")
    rig.produce("0")
    live.ack(live.one().offset)
    stalling.ack(stalling.one().offset)
    for number in range(1, 4):
        rig.produce(str(number))
        live.ack(live.one().offset)
    with pytest.raises(OverloadedError):
        rig.produce("4")
    stalling.close()
    rig.advance(1500)
    with pytest.raises(OverloadedError):
        rig.produce("4")
    rig.advance(2)
    rig.produce("4")
    late = rig.consume(group="late", credit=1)
    late.ack(late.one().offset)
    live.ack(live.one().offset)
    rig.produce("5")


def test_a_group_that_was_there_from_the_start_counts_in_every_partition() -> None:
    rig = BrokerRig(partition_msgs_max=3)
    rig.create("t", 2)
    live, stalling = rig.consume(group="live"), rig.consume(group="stalling", credit=1)
    rig.produce("0", partition_override=0)
    live.ack(live.one().offset)
    rig.produce("1", partition_override=0)
    live.ack(live.one().offset)
    stalling.ack(stalling.one().offset)
    for _ in range(3):
        rig.produce("2", partition_override=1)
        live.ack(live.one().offset, 1)
    with pytest.raises(OverloadedError):
        rig.produce("3", partition_override=1)
    late = rig.consume(group="late", credit=1)
    late.ack(late.one().offset)
    while got := stalling.take():
        stalling.ack(got[0].offset, got[0].partition)
    rig.produce("3", partition_override=1)


def test_what_cannot_be_logged_has_not_happened() -> None:
    """inv1: 74"""
    armed = False
    rig = BrokerRig(
        wrap=lambda disk: FaultyDisk(
            disk, forever=True, when=lambda operation, path: armed and operation == "pwritev" and "wal-" in path
        )
    )
    rig.create()
    rig.produce("0", "1")
    consumer = rig.consume(lease_ms=1000)
    assert consumer.offsets() == [0, 1]
    armed = True
    with pytest.raises(InternalError):
        rig.produce("lost")
    with pytest.raises(InternalError):
        consumer.ack(0)
    with pytest.raises(InternalError):
        consumer.nack(1)
    armed = False
    assert consumer.offsets() == []
    rig.advance(1251)
    assert [(d.offset, d.attempts) for d in consumer.take()] == [(0, 2), (1, 2)]
    consumer.ack(0)
    assert rig.produce("kept")[0].offset == 2
    rig.crash()
    assert [d.message.value for d in rig.consume().take()] == ["1", "kept"]


def test_an_ephemeral_topic_stays_and_its_messages_do_not() -> None:
    rig = BrokerRig(durability="ephemeral")
    rig.create("t", 2)
    rig.produce("0", "1", "2")
    consumer = rig.consume()
    assert consumer.offsets() == [0, 1, 2]
    consumer.ack(1)
    consumer.nack(0, "no")
    assert consumer.one()[1:4] == (0, 2, "no")
    for life in (rig.restart, rig.crash):
        life()
        assert rig.broker.partitions("t") == 2
        assert rig.consume(group="new").offsets() == []
        (made,) = rig.produce("again")
        assert [d.offset for d in rig.consume().take()] == [made.offset]


def test_a_seek_moves_a_group_and_voids_its_leases(rig: BrokerRig) -> None:
    rig.produce(*"01234")
    consumer = rig.consume(lease_ms=60_000)
    consumer.take()
    consumer.ack(0)
    consumer.nack(1, "no")
    assert consumer.one().attempts == 2
    with pytest.raises(PreconditionError):
        rig.run(rig.broker.seek("t", "g", {0: 0}))
    seen = rig.run(rig.broker.seek("t", "g", {0: 3}, dry_run=True, force=True))
    assert seen == [(0, 0, 2)]
    assert consumer.offsets() == []
    assert rig.run(rig.broker.seek("t", "g", {0: 0}, force=True)) == [(0, 0, -1)]
    assert [(d.offset, d.attempts, d.last_error) for d in consumer.take()] == [(n, 1, "") for n in range(5)]
    assert rig.run(rig.broker.seek("t", "g", {0: 9}, force=True)) == [(0, -1, 4)]
    with pytest.raises(InvalidRequestError, match="not in-flight"):
        rig.broker.nack(consumer.place(1), "a")
    assert rig.run(rig.broker.seek("t", "new", {0: 3})) == [(0, -1, 2)]
    rig.crash()
    assert (rig.lag(group="g"), rig.consume(group="new").offsets()) == (0, [3, 4])


def test_a_seek_over_many_messages_lets_others_in_between() -> None:
    rig = BrokerRig()
    rig.create("t", 2)
    for _ in range(3):
        batch: list[tuple[Message, int | None]] = [(message("v", partition_override=n % 2), None) for n in range(400)]
        rig.run(rig.broker.produce_batch("t", batch, atomic=True))
    seeking = rig.broker.seek("t", "g", {0: 1000, 1: 901}, dry_run=True)
    seen: list[bool] = []
    rig.engine_rig.runtime.soon(lambda: seen.append(seeking.settled))
    assert rig.run(seeking) == [(0, -1, 998), (1, -1, 899)]
    assert seen == [False]
    rig.run(rig.broker.seek("t", "g", {0: 1000, 1: 901}))
    (found,) = rig.broker.groups("t", "g")
    assert [(row.floor, row.done, row.lag) for row in found.partitions] == [(998, 500, 100), (899, 450, 150)]


def test_an_extension_gives_a_delivery_another_deadline(rig: BrokerRig) -> None:
    rig.produce("0")
    consumer = rig.consume(lease_ms=1000)
    consumer.take()
    now = rig.engine_rig.engine.time.now()
    assert rig.broker.extend(consumer.place(0), "a", 5000) == now + 5000
    rig.advance(5000)
    assert consumer.offsets() == []
    consumer.close()
    rig.advance(300)
    rig.broker.extend(consumer.place(0), "a", 5000)  # it has run out, and nobody else has it
    other = rig.consume(owner="b")
    rig.advance(5000)
    assert other.offsets() == []
    with pytest.raises(NotOwnerError):
        rig.broker.extend(consumer.place(0), "b", 5000)
    with pytest.raises(InvalidRequestError, match="invalid lease_ms"):
        rig.broker.extend(consumer.place(0), "a", 0)
    rig.advance(300)
    assert other.offsets() == [0]


def test_figures_tell_how_a_group_stands(rig: BrokerRig) -> None:
    """inv1: 75"""
    rig.produce("0", "1", "2", retry=(0, 60_000, 0))
    consumer = rig.consume(credit=2)
    consumer.take()
    consumer.ack(1)
    consumer.take()
    consumer.nack(0)
    consumer.take()
    (found,) = rig.broker.groups("t")
    (row,) = found.partitions
    assert (found.topic, found.group, found.streams) == ("t", "g", 1)
    assert (row.floor, row.last_acked, row.done, row.lag) == (-1, 1, 1, 2)
    assert (row.in_flight, row.waiting, row.owners) == (1, 1, ["a"])
    assert rig.broker.groups("t", "other") == rig.broker.groups("u") == []
