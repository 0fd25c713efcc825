"""Feeds: what a reader of many topics gets, in which order, and what it waits for."""

import pytest

from driftq.engine.load.pressure import Level, Pressure
from driftq.errors import InternalError, InvalidRequestError
from driftq.features.watch.feed import Feed
from driftq.features.watch.position import Options, ReadPosition
from driftq.model.tombstone import Reason
from driftq.model.topic_config import Durability
from driftq.system.runtime import Pending
from tests.unit.features.watch.outlet import FeedRig, KeptOutlet


@pytest.fixture
def rig() -> FeedRig:
    return FeedRig()


def test_topics_come_in_name_order_each_to_its_head_then_live(rig: FeedRig) -> None:
    for name in ("b", "a"):
        rig.write(name, 1, 2, 3)
    _, outlet = rig.feed("b", "a", limit=2)
    assert outlet.taken() == [
        ("record", "a", [1, 2], 0, 3),
        ("record", "a", [3], 2, 3),
        ("caught-up", "a", 3),
        ("record", "b", [1, 2], 0, 3),
        ("record", "b", [3], 2, 3),
        ("caught-up", "b", 3),
    ]
    rig.write("b", 4)
    assert outlet.taken() == [("record", "b", [4], 3, 4), ("caught-up", "b", 4)]


def test_caught_up_is_said_once_per_position(rig: FeedRig) -> None:
    rig.put("t")
    _, outlet = rig.feed("t")
    assert outlet.taken() == [("caught-up", "t", 0)]
    rig.engine.wakeups.wake("t")
    rig.runtime.run_until_idle()
    assert outlet.taken() == []


def test_own_records_are_passed_over_and_reach_caught_up(rig: FeedRig) -> None:
    """inv: 57"""
    rig.write("t", 1, 2, batch_node="me")
    _, outlet = rig.feed("t", nodes=frozenset([b"me"]))
    assert outlet.taken() == [("caught-up", "t", 2)]


def test_a_topic_that_does_not_filter_nodes_is_not_filtered(rig: FeedRig) -> None:
    rig.put("t", dedupe_node=False)
    rig.write("t", 1, batch_node="me")
    _, outlet = rig.feed("t", nodes=frozenset([b"me"]))
    assert outlet.taken() == [("record", "t", [1], 0, 1), ("caught-up", "t", 1)]


def test_a_loss_before_the_first_read_is_masked_and_a_later_one_is_not(rig: FeedRig) -> None:
    """inv: 58"""
    rig.put("t", cap_records=2)
    rig.write("t", 1, 2, 3)
    _, outlet = rig.feed("t", hides_loss=True)
    assert outlet.taken() == [
        ("tombstone", "t", "from_seq_too_old", 1, 1),
        ("record", "t", [2, 3], 1, 3),
        ("caught-up", "t", 3),
    ]
    outlet.ready = False
    rig.write("t", 4, 5, 6, 7)
    outlet.ready = True
    rig.engine.wakeups.wake("t")
    rig.runtime.run_until_idle()
    assert outlet.taken()[0] == ("tombstone", "t", "cap", 4, 5)


def test_a_loss_is_masked_only_where_the_reader_wants_it(rig: FeedRig) -> None:
    rig.put("t", cap_records=1)
    rig.write("t", 1, 2)
    _, outlet = rig.feed("t")
    assert outlet.taken()[0] == ("tombstone", "t", "cap", 1, 1)


@pytest.mark.parametrize("reason", [Reason.SOURCE_TRIM, Reason.CRASH, Reason.CORRUPTION])
def test_a_hole_is_never_masked(rig: FeedRig, reason: Reason) -> None:
    rig.write("t", 1)
    rig.topic("t").skip_to(4, reason)
    _, outlet = rig.feed("t", start={"from_seq": 1}, hides_loss=True)
    assert outlet.taken() == [("tombstone", "t", reason.value, 2, 4), ("caught-up", "t", 4)]


def test_a_topic_made_anew_between_two_passes_is_told_as_such_whatever_its_seqs(rig: FeedRig) -> None:
    rig.write("t", 1, 2)
    _, outlet = rig.feed("t", hides_loss=True)
    outlet.taken()
    outlet.ready = False
    rig.run(rig.engine.delete_topic("t"))
    rig.write("t", "x", "y", "z")
    outlet.ready = True
    rig.engine.wakeups.wake("t")
    rig.runtime.run_until_idle()
    assert outlet.taken() == [
        ("tombstone", "t", "recreated", 1, 3),
        ("record", "t", [1, 2, 3], 0, 3),
        ("caught-up", "t", 3),
    ]


def test_a_deleted_topic_is_told_with_its_last_head_and_is_final(rig: FeedRig) -> None:
    """inv: 59"""
    rig.put("gone")
    rig.put("stays")
    feed, outlet = rig.feed("gone", "stays")
    outlet.taken()
    outlet.ready = False
    rig.write("gone", 1, 2, 3)
    rig.run(rig.engine.delete_topic("gone"))
    outlet.ready = True
    rig.write("stays", 1)
    assert outlet.taken() == [("deleted", "gone", 3), ("record", "stays", [1], 0, 1), ("caught-up", "stays", 1)]
    rig.write("gone", "again")
    assert outlet.taken() == []
    assert len(feed) == 1


def test_an_outlet_without_room_is_read_for_no_further_and_loses_nothing(rig: FeedRig) -> None:
    rig.put("t")
    feed, outlet = rig.feed("t")
    outlet.taken()
    outlet.room = 1
    for number in range(10):
        rig.write("t", number)
    assert outlet.taken() == [("record", "t", [1], 0, 1), ("caught-up", "t", 1)]
    outlet.room, outlet.ready = None, True
    feed.resume()
    rig.runtime.run_until_idle()
    # What came meanwhile has become one batch.
    assert outlet.taken() == [("record", "t", list(range(2, 11)), 1, 10), ("caught-up", "t", 10)]


def test_one_topic_that_grows_as_it_is_read_does_not_keep_the_others_waiting(rig: FeedRig) -> None:
    rig.write("a", 1, 2)
    rig.write("b", 1)
    outlet = KeptOutlet()
    feed = Feed(rig.watch, outlet)
    read = outlet.records

    def records(name: str, *rest: object) -> None:
        read(name, *rest)  # type: ignore[arg-type]
        if name == "a" and len(outlet.events) < 20:
            rig.write_nowait("a", 0, 0)

    outlet.records = records  # type: ignore[method-assign, assignment]
    for name, place in [(name, rig.begin(name)) for name in ("a", "b")]:
        feed.add(name, place, Options(limit=1))
    rig.runtime.run_until_idle()
    names = [event[1] for event in outlet.taken() if event[0] == "record"]
    assert "b" in names[:4]
    assert names.count("a") > 10


def test_nothing_comes_after_a_topic_is_removed_or_the_feed_closed(rig: FeedRig) -> None:
    """inv: 62"""
    rig.write("t", 1)
    rig.write("u", 1)
    feed, outlet = rig.feed("t", "u")
    outlet.taken()
    rig.write_nowait("t", 2)
    feed.remove("t")
    rig.write("u", 2)
    assert [event[1] for event in outlet.taken()] == ["u", "u"]
    rig.write_nowait("u", 3)
    feed.close()
    rig.write("u", 4)
    assert outlet.taken() == []
    assert not rig.engine.wakeups.names()


def test_following_a_topic_again_replaces_place_and_options(rig: FeedRig) -> None:
    rig.write("t", 1, 2, 3)
    feed, outlet = rig.feed("t")
    outlet.taken()
    feed.add("t", rig.begin("t", from_seq=1), Options(limit=1))
    rig.runtime.run_until_idle()
    assert outlet.taken() == [("record", "t", [2], 1, 3), ("record", "t", [3], 2, 3), ("caught-up", "t", 3)]
    rig.write("t", 4)
    assert outlet.taken() == [("record", "t", [4], 3, 4), ("caught-up", "t", 4)]


def test_feeds_that_share_a_place_miss_nothing_between_them(rig: FeedRig) -> None:
    rig.put("t")
    place = rig.begin("t")
    outlets = [KeptOutlet(), KeptOutlet()]
    for outlet in outlets:
        Feed(rig.watch, outlet).add("t", place, Options())
    for number in range(5):
        rig.write("t", number)
    seqs = [seq for outlet in outlets for event in outlet.taken() if event[0] == "record" for seq in event[2]]
    assert sorted(seqs) == [1, 2, 3, 4, 5]


# What is waited for


def test_blocks_that_are_not_in_memory_are_waited_for_without_stopping_others() -> None:
    rig = FeedRig(cache_bytes=1, segment_max_events=4)
    for value in range(10):
        rig.write("cold", *[value] * 4)
    rig.disk.cached = False
    rig.write("warm", 1)
    rig.runtime.hold("driftq-reads")
    _, waiting = rig.feed("cold")
    _, other = rig.feed("warm")
    assert waiting.taken() == []
    assert other.taken() == [("record", "warm", [1], 0, 1), ("caught-up", "warm", 1)]
    rig.runtime.release("driftq-reads")
    rig.runtime.run_until_idle()
    seqs = [seq for event in waiting.taken() if event[0] == "record" for seq in event[2]]
    assert seqs == list(range(1, 41))


def slow_rig() -> FeedRig:
    """A topic `cold` of 40 records whose blocks are not read before the thread goes on, and `warm` with one."""
    rig = FeedRig(cache_bytes=1, segment_max_events=4)
    for value in range(10):
        rig.write("cold", *[value] * 4)
    rig.disk.cached = False
    rig.write("warm", 1)
    rig.runtime.hold("driftq-reads")
    return rig


def seqs_of(outlet: KeptOutlet, name: str) -> list[int]:
    """Return the seqs of a topic that came since the last call."""
    return [seq for event in outlet.taken() if event[:2] == ("record", name) for seq in event[2]]


def test_a_block_that_takes_long_holds_up_its_own_topic_only() -> None:
    rig = slow_rig()
    _, outlet = rig.feed("cold", "warm")
    rig.runtime.advance(249)
    assert outlet.taken() == [], "names in their order, as long as reads are fast"
    rig.runtime.advance(1)
    assert outlet.taken() == [("record", "warm", [1], 0, 1), ("caught-up", "warm", 1)]
    rig.write("cold", 10)
    rig.write("warm", 2)
    assert outlet.taken() == [("record", "warm", [2], 1, 2), ("caught-up", "warm", 2)]
    rig.runtime.release("driftq-reads")
    rig.runtime.advance(1000)
    assert seqs_of(outlet, "cold") == list(range(1, 42))
    rig.write("cold", 11)
    assert seqs_of(outlet, "cold") == [42]


def test_a_topic_that_is_late_can_be_followed_again_from_elsewhere() -> None:
    rig = slow_rig()
    feed, outlet = rig.feed("cold", "warm")
    rig.runtime.advance(300)
    outlet.taken()
    feed.add("cold", ReadPosition(36, rig.topic("cold").id, 40), Options())
    feed.remove("warm")
    rig.runtime.release("driftq-reads")
    rig.runtime.advance(1000)
    assert seqs_of(outlet, "cold") == [37, 38, 39, 40]


@pytest.mark.parametrize("removed", [True, False])
def test_a_topic_that_is_late_is_not_heard_of_after_the_end(removed: bool) -> None:
    rig = slow_rig()
    feed, outlet = rig.feed("cold", "warm")
    rig.runtime.advance(300)
    outlet.taken()
    feed.remove("cold") if removed else feed.close()
    rig.runtime.release("driftq-reads")
    rig.runtime.advance(1000)
    assert outlet.taken() == []
    rig.write("warm", 2)
    assert seqs_of(outlet, "warm") == ([2] if removed else [])


def test_a_feed_that_is_closed_while_it_waits_says_nothing_more() -> None:
    rig = FeedRig(cache_bytes=1, segment_max_events=4)
    for value in range(10):
        rig.write("cold", *[value] * 4)
    rig.disk.cached = False
    rig.runtime.hold("driftq-reads")
    feed, outlet = rig.feed("cold")
    feed.close()
    rig.runtime.release("driftq-reads")
    rig.runtime.run_until_idle()
    assert outlet.taken() == []


def test_what_cannot_be_read_now_is_tried_again_and_said_once(
    rig: FeedRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig.put("t")
    _, outlet = rig.feed("t")
    outlet.taken()
    with monkeypatch.context() as patch:

        def fails(*_: object) -> None:
            raise InternalError("no file handle is left")

        patch.setattr(rig.engine, "diff", fails)
        rig.write("t", 1)
        rig.runtime.advance(5000)
        assert outlet.taken() == []
    rig.runtime.advance(1000)
    assert outlet.taken() == [("record", "t", [1], 0, 1), ("caught-up", "t", 1)]
    assert caplog.text.count("no file handle is left") == 1


class Copier:
    """An upstream that a test lets finish."""

    def __init__(self, rig: FeedRig) -> None:
        self.rig = rig
        self.asked = 0
        self.waiting: Pending[None] | None = None

    def bring(self, topic: object) -> Pending[None] | None:
        self.asked += 1
        if self.asked > 1:
            return None
        self.waiting = Pending()
        return self.waiting


def test_copies_are_brought_before_a_topic_is_read(rig: FeedRig) -> None:
    """inv: 44"""
    rig.put("t")
    place = rig.begin("t")
    copier = Copier(rig)
    rig.engine.topic_copiers.append(copier)
    outlet = KeptOutlet()
    Feed(rig.watch, outlet).add("t", place, Options())
    rig.runtime.run_until_idle()
    assert outlet.taken() == []
    rig.write("t", "a copy")
    assert copier.waiting is not None
    copier.waiting.resolve(None)
    rig.runtime.run_until_idle()
    assert outlet.taken() == [("record", "t", [1], 0, 1), ("caught-up", "t", 1)]


# Only what is synced


def test_strong_delivers_what_is_synced_and_is_woken_by_the_sync(rig: FeedRig) -> None:
    rig.put("t", Durability.DISK)
    rig.write("t", 0)
    rig.runtime.advance(100)
    _, outlet = rig.feed("t", strong=True)
    _, eventual = rig.feed("t")
    outlet.taken()
    eventual.taken()
    rig.hold_wal()
    written = rig.write_nowait("t", 1)
    rig.runtime.run_until_idle()
    assert written.settled
    assert eventual.taken() == [("record", "t", [2], 1, 2), ("caught-up", "t", 2)]
    assert outlet.taken() == []
    rig.release_wal()
    rig.runtime.advance(100)
    assert outlet.taken() == [("record", "t", [2], 1, 2), ("caught-up", "t", 2)]


def test_strong_from_an_unsynced_tail_waits_for_what_comes_behind_it(rig: FeedRig) -> None:
    rig.put("t", Durability.DISK)
    rig.write("t", 1)
    rig.hold_wal()
    rig.write_nowait("t", 2)
    rig.runtime.run_until_idle()
    _, outlet = rig.feed("t", start={"tail": True}, strong=True)
    assert outlet.taken() == [("caught-up", "t", 2)]
    rig.release_wal()
    rig.runtime.advance(100)
    assert outlet.taken() == []
    rig.write("t", 3)
    rig.runtime.advance(100)
    assert outlet.taken() == [("record", "t", [3], 2, 3), ("caught-up", "t", 3)]


def test_a_loss_behind_a_strong_tail_is_told_with_its_reason(rig: FeedRig) -> None:
    """inv: 58"""
    rig.put("t", Durability.DISK, cap_records=1)
    rig.write("t", 1)
    rig.runtime.advance(100)
    _, outlet = rig.feed("t", start={"tail": True}, strong=True, hides_loss=True)
    assert outlet.taken() == [("caught-up", "t", 1)]
    rig.write("t", 2, 3)
    rig.runtime.advance(100)
    assert outlet.taken() == [("tombstone", "t", "cap", 2, 2), ("record", "t", [3], 2, 3), ("caught-up", "t", 3)]


def test_strong_on_an_ephemeral_topic_is_refused(rig: FeedRig) -> None:
    rig.put("t", Durability.EPHEMERAL)
    with pytest.raises(InvalidRequestError, match="ephemeral"):
        rig.begin("t", strong=True)


# Under pressure


def test_a_pressed_server_paces_topics_of_negative_priority_and_tells_it_once(
    rig: FeedRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.put("low", priority=-10, auto_priority=False)
    rig.put("normal")
    _, outlet = rig.feed("low", "normal")
    outlet.taken()
    monkeypatch.setattr(Pressure, "level", Level.PRESSED)
    rig.write("low", 1)
    rig.write("normal", 1)
    rig.runtime.advance(1000)
    assert outlet.taken() == [
        ("paced", ["low"]),
        ("record", "normal", [1], 0, 1),
        ("caught-up", "normal", 1),
    ]
    monkeypatch.setattr(Pressure, "level", Level.CALM)
    rig.runtime.advance(1000)
    assert outlet.taken() == [("record", "low", [1], 0, 1), ("caught-up", "low", 1)]


def test_a_pressed_server_gathers_what_it_pushes(rig: FeedRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.put("t")
    _, outlet = rig.feed("t")
    outlet.taken()
    monkeypatch.setattr(Pressure, "level", Level.PRESSED)
    for number in range(5):
        rig.write("t", number)
        rig.runtime.advance(3)
    assert outlet.taken() == []
    rig.runtime.advance(20)
    assert outlet.taken() == [("record", "t", [1, 2, 3, 4, 5], 0, 5), ("caught-up", "t", 5)]


def test_a_bug_in_one_feed_ends_that_feed_only(rig: FeedRig, caplog: pytest.LogCaptureFixture) -> None:
    rig.put("t")
    feed, outlet = rig.feed("t")
    _, other = rig.feed("t")

    def fails(*_: object) -> None:
        raise RuntimeError("a bug")

    outlet.records = fails  # type: ignore[method-assign, assignment]
    rig.write("t", 1)
    assert outlet.broken
    assert len(feed) == 0
    assert "a feed failed" in caplog.text
    assert ("record", "t", [1], 0, 1) in other.taken()
