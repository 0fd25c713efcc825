"""The WebSocket: commands, their order and their errors, subscriptions, and a peer that does not read."""

import logging
from typing import Any

import pytest
from msgspec import json

from driftq.engine.state.topic import Topic
from driftq.http.answer import Upgrade
from driftq.http.v0.streams.websocket_session import OUT_MAX
from driftq.system.log_facts import FACTS
from driftq.system.log_repeats import WINDOW_MS
from driftq.system.runtime import Pending
from driftq.testing.server_rig import KeptSink, ServerRig


class Peer:
    """A socket of a rig, and who speaks on it."""

    def __init__(self, rig: ServerRig, **options: Any) -> None:
        self.rig = rig
        self.upgrade: Upgrade
        self.sink: KeptSink
        self.upgrade, self.sink = rig.socket(**options)

    def say(self, op: str, **fields: Any) -> None:
        """A command; no turn has run."""
        self.upgrade.source.received(json.encode({"op": op, **fields}).decode())

    def heard(self) -> list[Any]:
        """What came since the last call."""
        self.rig.run()
        return self.sink.messages()

    def ask(self, op: str, **fields: Any) -> Any:
        """The one answer to a command."""
        self.say(op, request_id=7, **fields)
        (answer,) = [message for message in self.heard() if "request_id" in message]
        assert answer["request_id"] == 7
        return answer

    def code(self, op: str, **fields: Any) -> str:
        """The code of a command's error."""
        answer = self.ask(op, **fields)
        assert answer["op"] == "error", answer
        assert answer["message"]
        return str(answer["code"])


@pytest.fixture
def rig() -> ServerRig:
    return ServerRig()


ONE = [{"data": 1}]


def test_refused_commands_are_in_the_log_by_reason(rig: ServerRig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    peers = Peer(rig), Peer(rig)
    for peer in (*peers, *peers):
        assert peer.code("subscribe", topic="none") == "topic_not_found"
        assert peer.code("dance") == "invalid_json"
    found = [getattr(record, FACTS) for record in caplog.records if record.message == "commands refused"]
    assert [(line["reason"], line["op"], line["count"]) for line in found] == [
        ("topic_not_found", "subscribe", 1),
        ("invalid_json", "dance", 1),
    ]
    caplog.clear()
    rig.runtime.advance(WINDOW_MS)
    assert [getattr(record, FACTS)["count"] for record in caplog.records if record.name == "driftq.http"] == [3, 3]


def test_the_count_of_refused_commands_is_logged_when_the_server_stops(
    rig: ServerRig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    peer = Peer(rig)
    for _ in range(4):
        assert peer.code("subscribe", topic="none") == "topic_not_found"
    caplog.clear()
    rig.close()
    found = [getattr(record, FACTS) for record in caplog.records if record.message == "commands refused"]
    assert [(line["reason"], line["count"]) for line in found] == [("topic_not_found", 3)]


def test_publish_is_a_write_and_its_seqs_reach_the_subscriber(rig: ServerRig) -> None:
    """inv: 62"""
    subscriber, publisher = Peer(rig), Peer(rig)
    rig.ok("PUT", "/v0/topics/t")
    assert subscriber.ask("subscribe", topic="t")["topics"] == {"t": {"from_seq": 0, "head_seq": 0, "earliest_seq": 1}}
    subscriber.heard()
    ack = publisher.ask("publish", topic="t", records=[{"data": "v", "tag": "x"}], node="n")
    figures = ack.pop("performance")
    assert set(figures) == {"server_total_ms", "wal_append_ms", "fsync_ms"}
    assert ack == {
        "op": "ack",
        "request_id": 7,
        "topic": "t",
        "first_seq": 1,
        "last_seq": 1,
        "seqs": [1],
        "head_seq": 1,
        "count": 1,
        "created": False,
        "deduped": False,
    }
    record, caught_up = subscriber.heard()
    assert (record["op"], record["from_seq"], record["to_seq"], record["head_seq"]) == ("record", 0, 1, 1)
    assert [(found["$seq"], found["data"]) for found in record["records"]] == [(1, "v")]
    assert caught_up == {"op": "caught_up", "topic": "t", "head_seq": 1}


def test_a_repeated_key_is_acked_as_deduped_and_seqs_can_be_left_out(rig: ServerRig) -> None:
    peer = Peer(rig)
    acks = [
        peer.ask("publish", topic="t", records=ONE, idempotency_key="k", return_seqs=False, config=None)
        for _ in range(2)
    ]
    assert [(ack["deduped"], ack["created"], ack["seqs"]) for ack in acks] == [(False, True, None), (True, False, None)]
    assert set(acks[1]["performance"]) == {"server_total_ms"}


def test_commands_are_answered_in_order_whatever_they_wait_for(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/slow", {"durability": "fsync"})
    rig.ok("PUT", "/v0/topics/fast", {"durability": "ephemeral"})
    peer = Peer(rig)
    rig.runtime.hold("driftq-wal-0")
    peer.say("publish", topic="slow", records=ONE, request_id=1)
    peer.say("publish", topic="fast", records=ONE, request_id=2)
    peer.say("ping", request_id=3)
    peer.say("subscribe", topic="slow", request_id=4)
    assert peer.heard() == []
    rig.runtime.release("driftq-wal-0")
    messages = peer.heard()
    assert [message["request_id"] for message in messages if "request_id" in message] == [1, 2, 3, 4]
    # The subscription came behind the publish, and so saw it.
    assert messages[3]["topics"]["slow"]["head_seq"] == 1


def test_publishes_do_not_wait_for_each_other(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/t", {"durability": "fsync"})
    peer = Peer(rig)
    before = rig.server.engine.shards.all[0].counters.syncs
    for number in range(10):
        peer.say("publish", topic="t", records=[{"data": number}], request_id=number)
    acks = peer.heard()
    assert [ack["request_id"] for ack in acks] == list(range(10))
    assert [ack["first_seq"] for ack in acks] == list(range(1, 11))
    assert rig.server.engine.shards.all[0].counters.syncs - before <= 2


@pytest.mark.parametrize("request_id", ["text", 7, 1.5, True, None, [1, {"a": 2}], {"k": "v"}])
def test_a_request_id_is_any_json(rig: ServerRig, request_id: object) -> None:
    peer = Peer(rig)
    peer.say("ping", request_id=request_id)
    peer.say("ping")
    assert peer.heard() == [{"op": "pong", "request_id": request_id}, {"op": "pong", "request_id": None}]


@pytest.mark.parametrize(
    "message",
    ["", "{", "[]", "7", "null", '{"op":"ping"} x', "{}", '{"op":"dance"}', '{"op":7}', "\ud800"]
    + [
        json.encode(command).decode()
        for command in (
            {"op": "publish", "topic": "t", "records": "x"},
            {"op": "publish", "topic": "t"},
            {"op": "subscribe", "topic": 5},
            {"op": "subscribe", "topic": "t", "from_seq": -1},
            {"op": "subscribe", "topics": ["t"]},
            {"op": "unsubscribe", "topics": "t"},
        )
    ],
)
def test_what_is_no_command_is_invalid_json_and_closes_nothing(rig: ServerRig, message: str) -> None:
    rig.ok("PUT", "/v0/topics/t")
    peer = Peer(rig)
    peer.upgrade.source.received(message)
    (error,) = peer.heard()
    assert (error["op"], error["code"]) == ("error", "invalid_json")
    assert peer.ask("ping")["op"] == "pong"


def test_binary_is_not_understood(rig: ServerRig) -> None:
    """inv: 62"""
    peer = Peer(rig)
    peer.upgrade.source.received(b'{"op":"ping"}')
    (error,) = peer.heard()
    assert (error["code"], error["request_id"]) == ("unsupported_message", None)
    assert peer.ask("ping")["op"] == "pong"


def test_a_command_fails_with_the_code_of_the_http_api(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/full", {"cap_records": 1, "discard": "reject"})
    rig.write("full", 1)
    peer = Peer(rig)
    assert peer.code("subscribe") == "invalid_request"
    assert peer.code("subscribe", topics={}) == "invalid_request"
    assert peer.code("subscribe", topic="absent") == "topic_not_found"
    assert peer.code("subscribe", topic="full", from_ts=1, tail=True) == "invalid_request"
    assert peer.code("subscribe", topic="full", from_seq=1 << 64) == "invalid_request"
    assert peer.code("unsubscribe") == "invalid_request"
    assert peer.code("publish", topic="t", records=[]) == "invalid_request"
    assert peer.code("publish", topic="-bad", records=ONE) == "invalid_request"
    assert peer.code("publish", topic="t", records=ONE, create=False) == "topic_not_found"
    assert peer.code("publish", topic="full", records=ONE) == "topic_full"
    assert peer.code("publish", topic="full", records=ONE * 2) == "record_too_large"
    assert not peer.sink.ended


def test_scopes_are_asked_for_command_by_command() -> None:
    """inv: 63, 73"""
    rig = ServerRig(keys="root,reader:r,writer:w,mine:rw:a.")
    rig.ok("PUT", "/v0/topics/a.t", key="root")
    rig.ok("PUT", "/v0/topics/b", key="root")
    assert rig.code("GET", "/v0/ws") == (401, "unauthorized")
    assert rig.code("GET", "/v0/ws?token=root") == (401, "unauthorized")
    reader, writer, mine = (Peer(rig, key=key) for key in ("reader", "writer", "mine"))
    assert reader.ask("subscribe", topic="b")["op"] == "subscribed"
    assert reader.code("publish", topic="b", records=ONE) == "forbidden"
    assert writer.code("subscribe", topic="b") == "forbidden"
    assert writer.ask("publish", topic="b", records=ONE)["op"] == "ack"
    assert writer.code("publish", topic="b", records=ONE, config={}) == "forbidden"
    assert mine.code("subscribe", topics={"a.t": {}, "b": {}}, lenient=True) == "forbidden"
    assert mine.code("publish", topic="b", records=ONE) == "forbidden"
    assert mine.ask("publish", topic="a.t", records=ONE)["op"] == "ack"


def test_nothing_comes_after_unsubscribed_and_one_may_subscribe_again(rig: ServerRig) -> None:
    """inv: 62"""
    rig.write("t", 1)
    peer = Peer(rig)
    peer.ask("subscribe", topic="t")
    rig.send("POST", "/v0/topics/t", {"records": ONE})
    answer = peer.ask("unsubscribe", topic="t", topics=["unknown", "t"])
    assert answer == {"op": "unsubscribed", "request_id": 7, "topics": ["t", "unknown"]}
    rig.write("t", 3)
    assert peer.heard() == []
    peer.say("subscribe", topic="t", from_seq=2)
    assert [message["op"] for message in peer.heard()] == ["subscribed", "record", "caught_up"]


def test_nothing_of_a_topic_that_is_half_read_comes_after_unsubscribed(rig: ServerRig) -> None:
    """inv: 62"""
    rig.write("t", *range(20))
    peer = Peer(rig)
    peer.sink.room = False
    peer.say("subscribe", topic="t", limit=1)
    assert peer.heard() == []
    peer.say("unsubscribe", topic="t")
    peer.sink.room = True
    peer.upgrade.source.room()
    ops = [message["op"] for message in peer.heard()]
    assert ops[-1] == "unsubscribed"
    assert 0 < ops.count("record") < 20


def test_an_entry_of_topics_wins_over_topic_and_a_failed_subscribe_changes_nothing(rig: ServerRig) -> None:
    rig.write("t", 1, 2, 3)
    peer = Peer(rig)
    answer = peer.ask("subscribe", topic="t", from_seq=3, topics={"t": {"from_seq": 1}})
    assert answer["topics"]["t"]["from_seq"] == 1
    peer.heard()
    assert peer.code("subscribe", topics={"t": {}, "absent": {}}) == "topic_not_found"
    rig.write("t", 4)
    (record, _) = peer.heard()
    assert [found["data"] for found in record["records"]] == [4]


def test_a_loss_is_told_with_its_own_reason(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/t", {"cap_records": 1})
    rig.write("t", 1, 2)
    peer = Peer(rig)
    peer.say("subscribe", topic="t")
    tombstone = peer.heard()[1]
    assert (tombstone["op"], tombstone["reason"], tombstone["$type"]) == ("tombstone", "cap", "tombstone")


def test_a_deleted_topic_ends_its_subscription(rig: ServerRig) -> None:
    rig.write("t", 1, 2)
    peer = Peer(rig)
    peer.ask("subscribe", topic="t")
    peer.heard()
    rig.ok("DELETE", "/v0/topics/t")
    assert peer.heard() == [{"op": "topic_deleted", "topic": "t", "head_seq": 2, "reason": "deleted"}]
    rig.write("t", "again")
    assert peer.heard() == []


def test_at_most_four_messages_wait_for_a_peer_that_does_not_read(rig: ServerRig) -> None:
    rig.write("t", *range(20))
    peer = Peer(rig)
    peer.sink.room = False
    peer.say("subscribe", topic="t", limit=1)
    assert peer.heard() == []
    peer.sink.room = True
    peer.upgrade.source.room()
    held = peer.sink.messages()
    assert [message["op"] for message in held] == ["subscribed", "record", "record", "record"]
    assert len(held) == OUT_MAX
    rest = peer.heard()
    assert [message["to_seq"] for message in rest if message["op"] == "record"] == list(range(4, 21))


def test_a_peer_that_does_not_read_is_not_heard_for_ever(rig: ServerRig) -> None:
    peer = Peer(rig)
    peer.sink.room = False
    for number in range(40):
        peer.say("ping", request_id=number)
    heard = [peer.sink.listens]
    peer.sink.room = True
    peer.upgrade.source.room()
    heard.append(peer.sink.listens)
    assert heard == [False, True]
    assert [message["request_id"] for message in peer.heard()] == list(range(40))


def test_shutdown_is_told_and_the_socket_closed(rig: ServerRig) -> None:
    """inv: 84"""
    rig.ok("PUT", "/v0/topics/t")
    peer = Peer(rig)
    peer.sink.room = False
    peer.say("subscribe", topic="t")
    peer.upgrade.source.goodbye()
    assert [message.get("code", message["op"]) for message in peer.heard()][-1] == "server_shutting_down"
    assert (peer.sink.ended, peer.sink.code) == (True, 1001)


def test_a_socket_counts_as_a_stream_and_leaves_nothing_behind() -> None:
    rig = ServerRig(limits={"sse_connections_max": 1})
    rig.ok("PUT", "/v0/topics/t")
    peer = Peer(rig)
    assert rig.code("GET", "/v0/ws") == (429, "throttled")
    peer.ask("subscribe", topic="t")
    peer.say("publish", topic="t", records=ONE)
    peer.upgrade.source.closed()
    peer.upgrade.source.closed()
    rig.run()
    assert rig.server.admission.streams == 0
    assert not rig.server.engine.wakeups.names()
    Peer(rig)


def test_a_subscription_that_is_waited_for_while_the_socket_goes_leaves_nothing_behind(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/t")
    copies: Pending[None] = Pending()

    class Copier:
        def bring(self, _: Topic) -> Pending[None]:
            return copies

    rig.server.engine.topic_copiers.append(Copier())
    peer = Peer(rig)
    peer.say("subscribe", topic="t")
    peer.upgrade.source.closed()
    copies.resolve(None)
    rig.run()
    assert not rig.server.engine.wakeups.names()


def test_long_commands_of_a_peer_that_does_not_read_are_not_gathered(rig: ServerRig) -> None:
    peer = Peer(rig)
    peer.sink.room = False
    for _ in range(OUT_MAX):
        peer.say("ping")
    peer.say("publish", topic="t", records=[{"data": "x" * (1 << 20)}])
    assert not peer.sink.listens


def test_a_batch_is_one_message_for_all_sockets(rig: ServerRig) -> None:
    rig.ok("PUT", "/v0/topics/t")
    peers = [Peer(rig) for _ in range(20)]
    for peer in peers:
        peer.ask("subscribe", topic="t")
    rig.write("t", 1)
    assert all(peer.heard()[-2]["op"] == "record" for peer in peers)
    assert rig.server.watch.batches.rendered == 1
