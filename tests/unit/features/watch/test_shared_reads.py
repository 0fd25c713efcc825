"""Those who stand together are told together, and nobody is told anything else than alone."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftq.features.watch.feed import Feed
from driftq.features.watch.position import Options
from driftq.model.topic_config import Durability
from tests.unit.features.watch.outlet import FeedRig, KeptOutlet

TOPICS = ("a", "b")


@pytest.fixture
def rig() -> FeedRig:
    rig = FeedRig()
    rig.put("a")
    return rig


def followers(rig: FeedRig, count: int, **options: Any) -> list[tuple[Feed, KeptOutlet]]:
    """So many who wait at the end of a topic."""
    found = [rig.feed("a", start={"tail": True}, **options) for _ in range(count)]
    for _, outlet in found:
        outlet.place = "here"
        outlet.taken()
    return found


@pytest.mark.parametrize("count", [2, 31, 32, 33, 100])
def test_all_who_stand_together_are_told_by_one_read(rig: FeedRig, count: int) -> None:
    together = followers(rig, count)
    for n in (1, 2, 3):
        rig.write("a", n)
        for _, outlet in together:
            assert outlet.taken() == [("record", "a", [n], n - 1, n), ("caught-up", "a", n)]
    leaders = -(-count // 32)
    assert sum(outlet.repeated for _, outlet in together) == 3 * (count - leaders)
    assert rig.watch.batches.rendered == 3


def test_who_stands_elsewhere_or_asks_for_something_else_is_told_its_own(rig: FeedRig) -> None:
    together = followers(rig, 3)
    _, slow = together[1]
    _, apart = together[2]
    apart.place = "there"
    alone = followers(rig, 1, tags=True)[0][1]
    slow.ready = False
    rig.write("a", 1)
    assert slow.taken() == []
    rig.write("a", 2)
    slow.ready = True
    together[1][0].resume()
    rig.runtime.run_until_idle()
    assert slow.taken() == [("record", "a", [1, 2], 0, 2), ("caught-up", "a", 2)]
    for outlet in (together[0][1], apart, alone):
        assert [event[0] for event in outlet.taken()] == ["record", "caught-up"] * 2
        assert outlet.repeated == 0
    rig.write("a", 3)
    assert slow.taken() == together[0][1].taken() == [("record", "a", [3], 2, 3), ("caught-up", "a", 3)]
    assert slow.repeated == 1


def test_a_topic_that_changes_all_the_time_is_told_to_the_last_too() -> None:
    """One round is too much for one turn here, and the next write comes before it is through."""
    rig = FeedRig()
    rig.put("a", Durability.EPHEMERAL)
    together = followers(rig, 400)
    for _ in range(40):
        rig.write_nowait("a", "x" * 10_000)
        rig.runtime.turn()
        rig.runtime.turn()
    told = [len(outlet.taken()) for _, outlet in together]
    assert min(told) > 0


def test_who_leaves_before_its_turn_hears_nothing(rig: FeedRig) -> None:
    (first, kept), (gone, silent) = followers(rig, 2)
    rig.engine.listeners.append(lambda _: gone.close())  # between the wake-up and the turn
    rig.write("a", 1)
    assert silent.taken() == []
    assert kept.taken() == [("record", "a", [1], 0, 1), ("caught-up", "a", 1)]
    first.close()
    assert not rig.engine.wakeups.awaited("a")


def test_streams_that_share_a_place_share_what_comes(rig: FeedRig) -> None:
    place = rig.begin("a", tail=True)
    outlets = [KeptOutlet(), KeptOutlet()]
    for outlet in outlets:
        outlet.place = "here"
        Feed(rig.watch, outlet).add("a", place, Options())
    rig.runtime.run_until_idle()
    for outlet in outlets:
        outlet.taken()
    rig.write("a", 1)
    told = [event for outlet in outlets for event in outlet.taken()]
    assert sorted(told) == [("caught-up", "a", 1), ("caught-up", "a", 1), ("record", "a", [1], 0, 1)]


def test_a_paced_topic_is_told_to_each_as_paced(rig: FeedRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.put("a", priority=-2000, auto_priority=False)
    together = followers(rig, 3)
    monkeypatch.setattr("driftq.engine.load.pressure._PRESSED_DEPTH", -1)
    rig.write_nowait("a", 1)
    rig.runtime.advance(50)
    assert [outlet.taken() for _, outlet in together] == [[("paced", ["a"])]] * 3
    monkeypatch.undo()
    rig.runtime.advance(1000)
    for _, outlet in together:
        assert outlet.taken() == [("record", "a", [1], 0, 1), ("caught-up", "a", 1)]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(TOPICS), st.integers(1, 3)),
        st.tuples(st.just("drop"), st.sampled_from(TOPICS), st.just(0)),
        st.tuples(st.just("slow"), st.just(""), st.integers(0, 4)),
        st.tuples(st.just("fast"), st.just(""), st.integers(0, 4)),
        st.tuples(st.just("follow"), st.sampled_from(TOPICS), st.integers(0, 4)),
        st.tuples(st.just("leave"), st.sampled_from(TOPICS), st.integers(0, 4)),
        st.tuples(st.just("delete"), st.sampled_from(TOPICS), st.integers(1, 9)),
    ),
    max_size=25,
)


@settings(deadline=None)
@given(STEPS)
def test_whatever_happens_everybody_is_told_what_they_would_be_told_alone(steps: list[tuple[str, str, int]]) -> None:
    assert told(steps, together=True) == told(steps, together=False)


def told(steps: list[tuple[str, str, int]], *, together: bool) -> list[list[tuple[Any, ...]]]:
    """What each of five feeds is told."""
    rig = FeedRig()
    for name in TOPICS:
        rig.put(name, cap_records=5)
    feeds = [rig.feed("a", start={"tail": True}) for _ in range(5)]
    places = [{"a": rig.begin("a", tail=True)} for _ in feeds]
    for (feed, outlet), mine in zip(feeds, places, strict=True):
        feed.add("a", mine["a"], Options())
        if together:
            outlet.standing = lambda mine=mine: {name: place.cursor for name, place in mine.items()}  # type: ignore[method-assign, misc]
    rig.runtime.run_until_idle()
    for step, name, n in steps:
        feed, outlet = feeds[n % len(feeds)]
        if step == "write":
            rig.write(name, *range(n))
        elif step == "drop":
            rig.run(rig.engine.delete_topic(name))
            rig.put(name, cap_records=5)
        elif step == "delete":
            rig.delete(name, before_seq=n)
        elif step == "leave":
            feed.remove(name)
        elif step == "follow":
            places[n % len(feeds)][name] = place = rig.begin(name, from_seq=0)
            feed.add(name, place, Options())
        else:
            outlet.ready = step == "fast"
            feed.resume()
        rig.runtime.run_until_idle()
    return [outlet.events for _, outlet in feeds]
