"""Offsets of a streaming query: the last seq read of each topic, and in which incarnation. Pure values; JSON for Spark.

    {"": {"server_id": "dbdc…"}, "orders@7": 1200, "payments@9": {"seq": 40, "began": 40}}

A key is a topic and its epoch. The value is the seq, or more than the seq where there is more to keep; "" has what all
topics share. Offsets of earlier versions are still read: `{"orders": {"epoch": 7, "seq": 1200, "began": 1000}}`.

`began` is the seq after which the query reads the topic. If a query dies in its first batch, Spark asks for the initial
offset again after the restart, and "latest" is a different number by then. The end offset of that batch, which is in
the checkpoint, still has the original `began`, and that one is used. Later offsets do not need it and leave it out.
`lost` counts seqs that were skipped because they were lost (`onDataLoss=skip`).

A topic that is deleted and created again is a new incarnation. Two offsets belong to different incarnations if their
epochs differ, or if the ids of their servers differ (epochs restart with a new data directory, and a restored directory
is a different history). They also differ if the end is below the start: after a crash, a topic of class `ephemeral` or
`memory` has a lower head and the same epoch.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from driftq.pipeline.errors import PipelineError


class TopicOffset(NamedTuple):
    """The last seq that a query has read of one topic (inclusive), in one incarnation of the topic."""

    epoch: int
    seq: int
    began: int | None
    """None in an offset after the first one: its batch starts where the previous one ended."""
    lost: int = 0
    server: str = ""
    """URL of the topic's server if it is not the session's server. Needed to report the query's position there."""
    server_id: str = ""
    """Id of the topic's server. Empty in offsets that do not contain it."""
    cursor: str = ""
    """Name of the cursor that shows the position on the server, if the query has one of its own."""

    def lives_on_in(self, later: "TopicOffset") -> bool:
        """Whether `later` is in the same incarnation: same epoch and server, and its seq is not below this one.

        A query that has read nothing of the topic (`seq == began`) has missed nothing, so a lower seq is accepted then.
        """
        if self.epoch != later.epoch or not same_server(self.server_id, later.server_id):
            return False
        return later.seq >= self.seq or self.seq == self.began


def same_server(one: str, other: str) -> bool:
    """Whether two ids can belong to the same server. An unknown (empty) id matches every id."""
    return not one or not other or one == other


Places = dict[str, TopicOffset]
_SHARED = ("server", "server_id", "cursor")


def encode(places: Mapping[str, TopicOffset]) -> dict[str, Any]:
    """Return the offset in the form that Spark stores. Topics are sorted because Spark compares offsets as text."""
    if not places:
        return {}
    first = places[min(places)]
    shared = {key: value for key in _SHARED if (value := getattr(first, key))}
    return {"": shared} | {f"{topic}@{places[topic].epoch}": _packed(places[topic], shared) for topic in sorted(places)}


def _packed(place: TopicOffset, shared: Mapping[str, str]) -> int | dict[str, Any]:
    more = {key: value for key in _SHARED if (value := getattr(place, key)) != shared.get(key, "")}
    began = {} if place.began is None else {"began": place.began}
    found = began | ({"lost": place.lost} if place.lost else {}) | more
    return {"seq": place.seq} | found if found else place.seq


def decode(offset: Mapping[str, Any]) -> Places:
    """Return the places of an offset that Spark stored. Raises PipelineError if another source wrote it."""
    try:
        return _decoded(offset) if "" in offset else _decoded_earlier(offset)
    except (TypeError, KeyError, AttributeError, ValueError):
        raise PipelineError(
            "the checkpoint holds offsets of another source: give this query its own checkpointLocation"
        ) from None


def _decoded(offset: Mapping[str, Any]) -> Places:
    shared = dict.fromkeys(_SHARED, "") | offset[""]
    found = {}
    for key, value in offset.items():
        topic, _, epoch = key.rpartition("@")
        if topic:
            place = {"began": None, "lost": 0} | shared | (value if isinstance(value, dict) else {"seq": value})
            found[topic] = TopicOffset(epoch=int(epoch), **place)
    return found


def _decoded_earlier(offset: Mapping[str, Any]) -> Places:
    return {
        topic: TopicOffset(
            place["epoch"],
            place["seq"],
            place.get("began", place["seq"]),
            place.get("lost", 0),
            place.get("server", ""),
            place.get("server_id", ""),
        )
        for topic, place in offset.items()
    }


class OffsetRange(NamedTuple):
    """The seqs that a batch reads of one topic: above `start`, up to and including `end`, in one incarnation."""

    topic: str
    epoch: int
    start: int
    end: int
    server_id: str = ""
    missed: TopicOffset | None = None
    """Offset in the previous incarnation where reading stopped, if the topic was created again since then."""


def ranges(start: Places, end: Places) -> list[OffsetRange]:
    """Return the range of each topic between two offsets; topics with nothing to read are left out."""
    found = []
    for topic, stop in sorted(end.items()):
        place = start.get(topic)
        if place is None:
            begin = stop.seq if stop.began is None else stop.began
            found.append(OffsetRange(topic, stop.epoch, begin, stop.seq, stop.server_id))
        elif not place.lives_on_in(stop):
            found.append(OffsetRange(topic, stop.epoch, 0, stop.seq, stop.server_id, missed=place))
        else:
            begin = place.seq if stop.began is None or place.began == stop.began else stop.began
            found.append(OffsetRange(topic, stop.epoch, begin, stop.seq, stop.server_id))
    return [part for part in found if part.end > part.start or part.missed is not None]


def within(most: int, most_bytes: int | None, sizes: Iterable[int]) -> int:
    """Return how many records a batch may have: `most`, or fewer so that they fit into `most_bytes` (at least 1).

    `sizes` has one record size in bytes per topic. All records are assumed to be as large as the largest of them.
    """
    largest = max(sizes, default=0)
    return most if most_bytes is None or not largest else max(1, min(most, most_bytes // largest))


def share(backlog: Mapping[str, int], budget: int | None) -> dict[str, int]:
    """Divide `budget` seqs among topics equally; what one topic does not need goes to the others.

    A topic with a backlog gets at least one seq, so that no topic waits forever. `budget=None` means no limit.
    """
    if budget is None or sum(backlog.values()) <= budget:
        return dict(backlog)
    given: dict[str, int] = {}
    left = budget
    for number, (topic, size) in enumerate(sorted(backlog.items(), key=lambda item: (item[1], item[0]))):
        given[topic] = min(size, max(1, left // (len(backlog) - number)))
        left = max(0, left - given[topic])
    return given


def lost_in(gaps: Iterable[tuple[int, int]]) -> int:
    """Return the number of seqs in the gaps."""
    return sum(max(0, last - first + 1) for first, last in gaps)


class LateLosses:
    """Losses that are found too late for the offset that should count them: the next offset counts them.

    Spark has already written that offset to its checkpoint. Losses are stored with the offset that they were too late
    for, so planning a batch more than once does not count them twice.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[TopicOffset, int]] = {}
        self._carried: dict[str, tuple[TopicOffset, int]] = {}

    def find(self, topic: str, start: TopicOffset | None, end: TopicOffset, gone: int) -> None:
        """Record that `gone` seqs of a planned batch are lost, of which `end` may have counted only some."""
        before, again = (0, 0) if start is None else (start.lost, int(not start.lives_on_in(end)))
        counted = end.lost - before - again - _known(self._carried, topic, end)
        self._found[topic] = (end, max(0, gone - counted))

    def carry(self, topic: str, start: TopicOffset | None, end: TopicOffset) -> TopicOffset:
        """Return `end` plus the losses that were found too late for `start`, the end offset of the previous batch."""
        late = _known(self._found, topic, start)
        end = end._replace(lost=end.lost + late)
        self._carried[topic] = (end, late)
        return end


def _known(counts: Mapping[str, tuple[TopicOffset, int]], topic: str, place: TopicOffset | None) -> int:
    at, count = counts.get(topic, (None, 0))
    return count if at == place else 0
